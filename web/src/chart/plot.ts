// How a chart is drawn: axes with round marks in one unit, lines with gaps
// where nothing is known, dots where a line would not show.
import type uPlot from "uplot";
import { clock } from "../layout/format";
import type { Line } from "./line";
import { palette } from "./palette";
import { dots } from "./points";
import { ticks } from "./ticks";

export const height = 180;
const font = "11px system-ui, sans-serif";
const tickAndGap = 12;
// The least room for a time with and without seconds, in CSS pixels.
const [wide, narrow] = [64, 46];

export interface Drawing {
  times: number[];
  lines: Line[];
  from: number;
  to: number;
}

export const data = ({ times, lines }: Drawing): uPlot.AlignedData => [times, ...lines.map((l) => l.points)];

/** The width of the widest label in CSS pixels. */
function widest(labels: string[]): number {
  const ruler = document.createElement("canvas").getContext("2d");
  if (!ruler) return 60;
  ruler.font = font;
  return Math.ceil(Math.max(0, ...labels.map((l) => ruler.measureText(l).width)));
}

export function options(width: number, { lines, from, to }: Drawing): uPlot.Options {
  const { series, grid, text } = palette();
  const unit = lines[0]?.unit ?? "count";
  const rate = lines[0]?.rate ?? false;
  let marks = ticks(0, unit, rate);
  const axis: uPlot.Axis = { stroke: text, font, gap: 4, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 5 } };
  return {
    width,
    height,
    padding: [8, 22, 0, 0], // room for half a time at the right
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { min: from, max: to },
      y: {
        range: (_u, _min, max) => {
          marks = ticks(max ?? 0, unit, rate);
          return [0, marks.top];
        },
      },
    },
    axes: [
      { ...axis, size: 26, space: (_u, _axis, min, max, pixels) => ((max - min) / pixels) * wide < 60 ? wide : narrow, values: (_u, at, _axis, _space, step) => at.map((t) => clock(t, step < 60)) },
      { ...axis, size: (_u, labels) => widest(labels ?? marks.labels) + tickAndGap, splits: () => marks.at, values: () => marks.labels },
    ],
    series: [
      {},
      ...lines.map((l, i): uPlot.Series => {
        const stroke = series[i % series.length];
        return { label: l.name, stroke, width: 1.5, spanGaps: false, points: { show: true, size: 5, width: 1, stroke, fill: stroke, filter: (u, index) => dots(u.data[index] as (number | null)[]) } };
      }),
    ],
  };
}
