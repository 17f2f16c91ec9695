import { Link } from "react-router";
import type { Schemas } from "../api/client";
import { value } from "../layout/format";

const order = ["online", "stale", "offline", "duplicate", "quarantined", "revoked", "never"];

interface Props {
  data: Schemas["Overview"];
  tenant: string;
  status: string | undefined;
  onStatus: (s: string | undefined) => void;
}

/** Counts by state (each a filter), the highest headline values, and signals that are not full. */
export function Overview({ data, tenant, status, onStatus }: Props) {
  const counts = Object.entries(data.by_status).sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  return (
    <>
      <div className="tiles" role="group" aria-label="Nodes by state">
        <button type="button" className="tile" aria-pressed={!status} onClick={() => onStatus(undefined)}>
          <b>{data.nodes}</b> all
        </button>
        {counts
          .filter(([s, n]) => n > 0 || s === status || s === "online" || s === "offline")
          .map(([s, n]) => (
            <button type="button" key={s} className={`tile status-${s}`} aria-pressed={status === s} onClick={() => onStatus(status === s ? undefined : s)}>
              <b>{n}</b> {s}
            </button>
          ))}
      </div>
      <div className="columns">
        {data.worst.length > 0 && (
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
              <tbody>
                {data.worst.map((w) => {
                  const top = w.nodes[0];
                  return (
                    top && (
                      <tr key={w.metric}>
                        <td>{w.metric}</td>
                        <td>
                          <Link to={`/t/${tenant}/ui/nodes/${top.node}`}>{top.name}</Link>
                        </td>
                        <td className="num">{value(top.value, w.unit, w.stat === "rate_per_s")}</td>
                      </tr>
                    )
                  );
                })}
              </tbody>
            </table>
          </section>
        )}
        {data.unhealthy.length > 0 && (
          <section className="card" aria-labelledby="unhealthy-heading">
            <h2 id="unhealthy-heading">Signals that are not full</h2>
            <ul className="plain">
              {data.unhealthy.map((u) => (
                <li key={`${u.component}/${u.signal}/${u.level}`}>
                  <span className={`badge level-${u.level}`}>{u.level}</span> {u.component} {u.signal} on {u.nodes} {u.nodes === 1 ? "node" : "nodes"}
                  {u.reason && <span className="hint"> — {u.reason}</span>}
                </li>
              ))}
            </ul>
          </section>
        )}
      </div>
    </>
  );
}
