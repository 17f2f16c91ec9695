import type { Schemas } from "../api/client";
import type { Line } from "../chart/chart";

type Series = Schemas["Series"];

/** A series' name within its module: "if_rx_bytes eth0". */
export function seriesName(s: Series): string {
  const [, metric = s.metric] = s.metric.split(".", 2);
  const labels = Object.entries(s.labels)
    .filter(([k]) => k !== "benign" && k !== "location")
    .map(([, v]) => v)
    .join(" ");
  return labels ? `${metric} ${labels}` : metric;
}

/** The most lines one chart draws; the rest is named below it. */
export const maxLines = 8;

const weight = (s: Series) => s.points.reduce<number>((sum, p) => sum + (p ?? 0), 0);

/** The busiest series of a chart as lines, and how many are left out. */
export function lines(all: Series[], metrics: string[]): { lines: Line[]; left: number } {
  const mine = all.filter((s) => metrics.includes(s.metric));
  const busiest = new Set(
    [...mine]
      .sort((a, b) => weight(b) - weight(a))
      .slice(0, maxLines)
      .map((s) => s),
  );
  // Drawn in a fixed order, so that colours stay with their series.
  const drawn = mine.filter((s) => busiest.has(s)).sort((a, b) => seriesName(a).localeCompare(seriesName(b)));
  return {
    lines: drawn.map((s) => ({ name: seriesName(s), unit: s.unit, rate: s.stat === "rate_per_s", points: s.points })),
    left: mine.length - drawn.length,
  };
}

/** The end of each point, in seconds since 1970: point i covers (start + i·step, start + (i+1)·step]. */
export function times(q: Schemas["MetricsQuery"]): number[] {
  const first = q.series[0];
  if (!first) return [];
  const start = Date.parse(first.start) / 1000;
  return first.points.map((_, i) => start + (i + 1) * q.step_s);
}
