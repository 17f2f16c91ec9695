import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { value } from "../layout/format";
import { lastKnown } from "./last-known";
import { palette } from "./palette";

/** One drawn line. Points are parallel to the chart's times; null is a gap. */
export interface Line {
  name: string;
  unit: string;
  rate: boolean;
  points: (number | null)[];
}

interface Props {
  title: string;
  times: number[]; // end of each point, seconds since 1970
  lines: Line[];
  from: number;
  to: number;
}

const height = 180;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** Lines over time, with the newest known value of each below. */
export function Chart({ title, times, lines, from, to }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const shape = lines.map((l) => `${l.name}|${l.unit}|${l.rate}`).join("\n");
  const latest = useRef({ times, lines, from, to });
  latest.current = { times, lines, from, to };

  // The plot is made anew when the set of lines or the theme changes …
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const draw = () => {
      plot.current?.destroy();
      const now = latest.current;
      plot.current = new uPlot(options(element.clientWidth, now), data(now.times, now.lines), element);
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    window.addEventListener("telltale-theme", draw);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", draw);
      window.removeEventListener("telltale-theme", draw);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [shape]);

  // … and moved along when only the points do.
  useEffect(() => {
    plot.current?.batch(() => {
      plot.current?.setData(data(times, lines), false);
      plot.current?.setScale("x", { min: from, max: to });
    });
  }, [times, lines, from, to]);

  return (
    <figure className="chart">
      <figcaption>{title}</figcaption>
      <div ref={box} className="plot" aria-hidden="true" />
      <table className="legend" aria-label={`${title}: newest values`}>
        <tbody>
          {lines.map((l, i) => {
            const at = lastKnown(l.points);
            return (
              <tr key={l.name} data-series={l.name} data-time={times[at] ?? ""} data-value={l.points[at] ?? ""}>
                <th scope="row">
                  <span className={`swatch series-${(i % 8) + 1}`} aria-hidden="true" /> {l.name}
                </th>
                <td className="num">{value(l.points[at], l.unit, l.rate)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </figure>
  );
}

function data(times: number[], lines: Line[]): uPlot.AlignedData {
  return [times, ...lines.map((l) => l.points)] as uPlot.AlignedData;
}

function options(width: number, { lines, from, to }: { lines: Line[]; from: number; to: number }): uPlot.Options {
  const { series, grid, text } = palette();
  const unit = lines[0]?.unit ?? "count";
  const rate = lines[0]?.rate ?? false;
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false },
    scales: { x: { min: from, max: to }, y: { range: (_u, min, max) => [Math.min(0, min ?? 0), Math.max(max ?? 0, 1e-9) * 1.1 || 1] } },
    axes: [{ ...axis, values: (_u, ticks) => ticks.map((t) => clock.format(t * 1000)) }, { ...axis, size: 64, values: (_u, ticks) => ticks.map((t) => value(t, unit, rate)) }],
    series: [{}, ...lines.map((l, i) => ({ label: l.name, stroke: series[i % series.length], width: 1.5, points: { show: true, size: 3 }, spanGaps: false }))],
  };
}
