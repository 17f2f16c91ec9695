import { Link } from "react-router";
import type { Schemas } from "../api/client";
import { ago, unknown } from "../layout/format";
import { Prose } from "../layout/prose";
import { StatusBadge } from "./status";

export function NodeTable({ tenant, nodes, filtered }: { tenant: string; nodes: Schemas["Node"][]; filtered: boolean }) {
  if (nodes.length === 0)
    return (
      <p className="empty">
        <Prose text={filtered ? "No node matches. Clear the search or the state above." : "No node yet. Create an enrolment token and run `telltale-agent enrol` on a machine."} />
      </p>
    );
  return (
    <div className="scroll" role="region" aria-label="Table of nodes" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">State</th>
            <th scope="col" className="whole">Last seen</th>
            <th scope="col">Labels</th>
            <th scope="col" className="roomy">Agent</th>
            <th scope="col" className="roomy">Kernel</th>
          </tr>
        </thead>
        <tbody>
          {nodes.map((n) => (
            <tr key={n.node}>
              <th scope="row">
                <Link to={`/t/${tenant}/ui/nodes/${n.node}`}>{n.name}</Link>
              </th>
              <td>
                <StatusBadge status={n.status} />
              </td>
              <td className="whole">{ago(n.freshness_s)}</td>
              <td>
                {Object.entries(n.labels).map(([k, v]) => (
                  <span key={k} className="label">
                    {k}={v}
                  </span>
                ))}
              </td>
              <td className="roomy">{n.agent_version || unknown}</td>
              <td className="roomy">{n.kernel || unknown}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
