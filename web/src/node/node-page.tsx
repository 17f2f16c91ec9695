import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useParams, useSearchParams } from "react-router";
import { get, type Schemas } from "../api/client";
import { StatusBadge } from "../fleet/status";
import { ago } from "../layout/format";
import { Problem } from "../layout/problem";
import { modules } from "./charts";
import { Facts } from "./facts";
import { ModuleCharts } from "./module-charts";
import { Signals } from "./signals";

const spans = [
  { minutes: 5, name: "5 min" },
  { minutes: 15, name: "15 min" },
  { minutes: 60, name: "1 h" },
  { minutes: 360, name: "6 h" },
];

/** One node: what it is, what it can measure, and its three modules live. */
export function NodePage() {
  const { tenant = "", node = "" } = useParams();
  const [params, setParams] = useSearchParams();
  const minutes = spans.find((s) => String(s.minutes) === params.get("span"))?.minutes ?? 15;
  const detail = useQuery({
    queryKey: [tenant, "node", node],
    queryFn: ({ signal }) => get<Schemas["NodeDetail"]>(tenant, `nodes/${encodeURIComponent(node)}`, {}, signal),
    refetchInterval: 5_000,
  });
  const name = detail.data?.name;
  useEffect(() => {
    document.title = `${name ?? "Node"} · ${tenant} · Telltale`;
  }, [name, tenant]);

  if (detail.error && !detail.data)
    return (
      <>
        <Problem error={detail.error} />
        <p>
          <Link to={`/t/${tenant}/ui`}>To the fleet</Link>
        </p>
      </>
    );
  if (!detail.data) return <p className="hint">Loading…</p>;
  return (
    <>
      <nav aria-label="Breadcrumb" className="crumbs">
        <Link to={`/t/${tenant}/ui`}>Fleet</Link> <span aria-hidden="true">›</span> {detail.data.name}
      </nav>
      <div className="heading">
        <h1>{detail.data.name}</h1>
        <StatusBadge status={detail.data.status} />
        <span className="hint">last seen {ago(detail.data.freshness_s)}</span>
        <span className="grow" />
        <div className="switch" role="group" aria-label="Span of the charts">
          {spans.map((s) => (
            <button type="button" key={s.minutes} aria-pressed={s.minutes === minutes} onClick={() => setParams({ span: String(s.minutes) }, { replace: true })}>
              {s.name}
            </button>
          ))}
        </div>
      </div>
      {detail.error && <Problem error={detail.error} />}
      <Facts node={detail.data} />
      {modules.map((m) => (
        <ModuleCharts key={m.module} tenant={tenant} node={node} module={m.module} charts={m.charts} minutes={minutes} signals={detail.data.capabilities.filter((c) => c.component === m.module)} />
      ))}
      <Signals capabilities={detail.data.capabilities} />
    </>
  );
}
