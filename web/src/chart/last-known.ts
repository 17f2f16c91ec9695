/** The index of the last known point, or -1. */
export function lastKnown(points: (number | null)[]): number {
  for (let i = points.length - 1; i >= 0; i--) if (points[i] !== null && points[i] !== undefined) return i;
  return -1;
}
