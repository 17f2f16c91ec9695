import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { get, type Params, type Schemas } from "../api/client";
import { Chart } from "../chart/chart";
import { axisStart } from "../chart/points";
import { ago, clock } from "../layout/format";
import { Problem } from "../layout/problem";
import { Prose } from "../layout/prose";
import { type ChartSpec, metricsOf } from "./charts";
import { lines, times } from "./series";

interface Props {
  tenant: string;
  node: string;
  module: string;
  charts: ChartSpec[];
  minutes: number;
  signals: Schemas["Capability"][];
}

/** The most pages read for one module; a node has at most 1,000 series. */
const maxPages = 6;

/** Every series of a question, page by page: a page is cut in the order of names, not of weight. */
async function allSeries(tenant: string, params: Params, signal: AbortSignal): Promise<Schemas["MetricsQuery"]> {
  const first = await get<Schemas["MetricsQuery"]>(tenant, "metrics/query", params, signal);
  const whole = { ...first, series: [...first.series] };
  for (let page = 1, cursor = first.next_cursor; cursor && page < maxPages; page++) {
    const next: Schemas["MetricsQuery"] = await get(tenant, "metrics/query", { ...params, cursor }, signal);
    whole.series.push(...next.series);
    cursor = next.next_cursor;
  }
  return whole;
}

/** One module's charts, asked for in one question and kept live. */
export function ModuleCharts({ tenant, node, module, charts, minutes, signals }: Props) {
  const query = useQuery({
    queryKey: [tenant, "query", node, module, minutes],
    queryFn: ({ signal }) => allSeries(tenant, { metrics: metricsOf(charts).join(","), node, from: `-${minutes}m`, limit: 200 }, signal),
    refetchInterval: 5_000,
    placeholderData: (before) => before,
  });
  const q = query.data;
  const view = useMemo(() => {
    if (!q) return undefined;
    const at = times(q);
    const to = Date.parse(q.window.to) / 1000;
    const points = q.series.map((s) => s.points);
    const drawn = charts.map((c) => ({ ...c, ...lines(q.series, c.metrics) })).filter((c) => c.lines.length > 0);
    return { at, to, drawn, ...axisStart(at, points, q.step_s, Date.parse(q.window.from) / 1000, to) };
  }, [q, charts]);
  const heading = `module-${module}`;
  const off = signals.length > 0 && signals.every((s) => s.level === "off");
  return (
    <section aria-labelledby={heading} className="module">
      <div className="heading">
        <h2 id={heading}>{module}</h2>
        {q && <span className="hint">data {ago(q.freshness_s)}</span>}
        {view?.fitted && <span className="hint">axes begin at {clock(view.from)}: no earlier data in this span</span>}
        {q && q.lost > 0 && <span className="badge level-degraded">{q.lost} observations lost: read values as “at least”</span>}
        {q?.skew_corrected && <span className="badge level-degraded">times corrected for clock skew</span>}
      </div>
      {query.error && <Problem error={query.error} />}
      {q && q.series.length === 0 && (
        <p className="empty">
          <Prose text={off ? `the module is off: ${signals[0]?.reason || "no reason given"}` : (q.coverage.not_covered[0]?.reason ?? "no data in this span")} />
        </p>
      )}
      <div className="charts">
        {view?.drawn.map((c) => (
          <Chart key={c.title} title={c.title} times={view.at} lines={c.lines} from={view.from} to={view.to} left={c.left} />
        ))}
      </div>
    </section>
  );
}
