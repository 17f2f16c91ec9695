// What can be said of a line's points. null is unknown, never zero.

export type Points = (number | null)[];

const known = (p: number | null | undefined): p is number => p !== null && p !== undefined;

/** The index of the last known point, or -1. */
export const lastKnown = (points: Points): number => points.findLastIndex(known);

/** The index of the first known point, or -1. */
const firstKnown = (points: Points): number => points.findIndex(known);

/** Whether something is known, and all of it is zero. */
export const allZero = (points: Points): boolean => points.some(known) && points.every((p) => !known(p) || p === 0);

const few = 3;

/** The points to mark with a dot: all when there are few, else those that no line reaches. */
export function dots(points: Points): number[] {
  const at = points.flatMap((p, i) => (known(p) ? [i] : []));
  return at.length <= few ? at : at.filter((i) => !known(points[i - 1]) && !known(points[i + 1]));
}

/** Where a time axis begins: at the data, when it covers less than a third of the span asked for. */
export function axisStart(times: number[], lines: Points[], step: number, from: number, to: number): { from: number; fitted: boolean } {
  const first = lines.map(firstKnown).filter((i) => i >= 0);
  const begins = (times[Math.min(...first)] ?? from) - step;
  if (first.length === 0 || to - begins >= (to - from) / 3) return { from, fitted: false };
  return { from: Math.max(from, Math.min(begins, to - 60)), fitted: true };
}
