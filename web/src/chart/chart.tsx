import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Legend } from "./legend";
import { type Drawing, data, height, options } from "./plot";

interface Props extends Drawing {
  title: string;
  left: number; // series that are not drawn
}

/** Lines over time (ends of points, seconds since 1970), with the newest known value of each below. */
export function Chart({ title, times, lines, from, to, left }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const shape = lines.map((l) => `${l.id}|${l.unit}|${l.rate}`).join("\n");
  const latest = useRef<Drawing>({ times, lines, from, to });
  latest.current = { times, lines, from, to };

  // The plot is made anew when the set of lines or the theme changes …
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element.clientWidth, latest.current), data(latest.current), element);
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
      plot.current?.setData(data({ times, lines, from, to }), false);
      plot.current?.setScale("x", { min: from, max: to });
    });
  }, [times, lines, from, to]);

  return (
    <figure className="chart">
      <figcaption>{title}</figcaption>
      <div ref={box} className="plot" aria-hidden="true" />
      <Legend title={title} times={times} lines={lines} left={left} />
    </figure>
  );
}
