import type { Schemas } from "../api/client";
import { spell } from "../layout/names";
import { Prose } from "../layout/prose";
import { signalSummary } from "./signal-summary";

const levels = ["off", "degraded", "full"];

/** Each signal with its level, source and reason, what is not full first; folded while all are full. */
export function Signals({ capabilities }: { capabilities: Schemas["Capability"][] }) {
  if (capabilities.length === 0)
    return (
      <section aria-labelledby="signals-heading">
        <h2 id="signals-heading">What this node can measure</h2>
        <p className="empty">The agent has not reported yet.</p>
      </section>
    );
  const rows = [...capabilities].sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level));
  return (
    <details className="card" open={capabilities.some((c) => c.level !== "full")}>
      <summary>
        <h2>What this node can measure</h2> <span className="hint">{signalSummary(capabilities)}</span>
      </summary>
      <div className="scroll signals" role="region" aria-label="Signals" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Component</th>
              <th scope="col">Signal</th>
              <th scope="col">Level</th>
              <th scope="col">Source</th>
              <th scope="col">Reason</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((c) => (
              <tr key={`${c.component}/${c.signal}`}>
                <td>{c.component}</td>
                <td>{spell(c.signal)}</td>
                <td>
                  <span className={`badge level-${c.level}`}>{c.level}</span>
                </td>
                <td>{c.source || "none"}</td>
                <td className="reason">{c.reason && <Prose text={c.reason} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
