import { Link } from "react-router";
import type { Schemas } from "../api/client";
import { counted, value } from "../layout/format";
import { byModule, metricName } from "../layout/names";
import { Prose } from "../layout/prose";
import { groups, subject } from "./unhealthy";

/** The highest headline values, and the signals that are not full. */
export function Overview({ data, tenant }: { data: Schemas["Overview"]; tenant: string }) {
  const worst = data.worst.flatMap((w) => (w.nodes[0] ? [{ ...w, top: w.nodes[0] }] : []));
  return (
    <aside className="side" aria-label="What stands out">
      {data.unhealthy.length > 0 && (
        <section className="card" aria-labelledby="unhealthy-heading">
          <h2 id="unhealthy-heading">Signals that are not full</h2>
          <ul className="plain">
            {groups(data.unhealthy).map((g) => (
              <li key={`${g.level}/${g.nodes}/${g.reason}`}>
                <span className={`badge level-${g.level}`}>{g.level}</span> <span title={g.signals.join(", ")}>{subject(g)}</span> on {counted(g.nodes, "node")}
                {g.reason && (
                  <p className="hint">
                    <Prose text={g.reason} />
                  </p>
                )}
              </li>
            ))}
          </ul>
        </section>
      )}
      {worst.length > 0 && (
        <section className="card" aria-labelledby="worst-heading">
          <h2 id="worst-heading">Highest right now</h2>
          <table>
            <thead>
              <tr>
                <th scope="col">Metric</th>
                <th scope="col">Node</th>
                <th scope="col" className="num">
                  Value
                </th>
              </tr>
            </thead>
            {byModule(worst).map(([module, rows]) => (
              <tbody key={module}>
                <tr>
                  <th scope="rowgroup" colSpan={3} className="group">
                    {module}
                  </th>
                </tr>
                {rows.map((w) => (
                  <tr key={w.metric} data-metric={w.metric}>
                    <td title={w.metric}>{metricName(w.metric)}</td>
                    <td>
                      <Link className="short" title={w.top.name} to={`/t/${tenant}/ui/nodes/${w.top.node}`}>
                        {w.top.name}
                      </Link>
                    </td>
                    <td className="num">{value(w.top.value, w.unit, w.stat === "rate_per_s")}</td>
                  </tr>
                ))}
              </tbody>
            ))}
          </table>
        </section>
      )}
    </aside>
  );
}
