import type { Schemas } from "../api/client";
import type { Line } from "../chart/line";
import { allZero } from "../chart/points";
import { metricName } from "../layout/names";

type Series = Schemas["Series"];

const hidden = ["benign", "location"];
const shown = (s: Series) => Object.entries(s.labels).filter(([k]) => !hidden.includes(k));
const values = (s: Series) => shown(s).map(([, v]) => v);

/** A series' stable id within its module: "if_rx_bytes eth0". */
export function seriesId(s: Series): string {
  const [, metric = s.metric] = s.metric.split(".", 2);
  return [metric, ...values(s)].join(" ");
}

/** A series for people: "eth0 received"; the labels alone where the chart has one metric. */
export function seriesName(s: Series, alone: boolean): string {
  const labels = values(s);
  return alone && labels.length > 0 ? labels.join(" ") : [...labels, metricName(s.metric)].join(" ");
}

/** The exact metric with its labels: "network.if_rx_bytes interface=eth0". */
const exact = (s: Series): string => [s.metric, ...shown(s).map(([k, v]) => `${k}=${v}`)].join(" ");

/** The most lines one chart draws that are not flat zeros; the rest is counted below it. */
export const maxLines = 6;

const weight = (s: Series) => s.points.reduce<number>((sum, p) => sum + (p ?? 0), 0);
const byId = (a: Series, b: Series) => seriesId(a).localeCompare(seriesId(b));

/** The busiest series of a chart as lines, then those at zero, and how many are left out. */
export function lines(all: Series[], metrics: string[]): { lines: Line[]; left: number } {
  const mine = all.filter((s) => metrics.includes(s.metric));
  const zero = mine.filter((s) => allZero(s.points)).sort(byId);
  const busy = mine.filter((s) => !allZero(s.points)).sort((a, b) => weight(b) - weight(a));
  // Drawn in a fixed order, so that colours stay with their series.
  const drawn = [...busy.slice(0, maxLines).sort(byId), ...zero];
  return {
    lines: drawn.map((s) => ({ id: seriesId(s), name: seriesName(s, metrics.length === 1), metric: exact(s), unit: s.unit, rate: s.stat === "rate_per_s", points: s.points })),
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
