import type { Schemas } from "../api/client";
import { signalSummary } from "./signal-summary";

/** Each signal with its level, source and reason; folded while all are full. */
export function Signals({ capabilities }: { capabilities: Schemas["Capability"][] }) {
  if (capabilities.length === 0)
    return (
      <section aria-labelledby="signals-heading">
        <h2 id="signals-heading">What this node can measure</h2>
        <p className="empty">The agent has not reported yet.</p>
      </section>
    );
  return (
    <details className="card" open={capabilities.some((c) => c.level !== "full")}>
      <summary>
        <h2>What this node can measure</h2> <span className="hint">{signalSummary(capabilities)}</span>
      </summary>
      <div className="scroll" role="region" aria-label="Signals" tabIndex={0}>
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
            {capabilities.map((c) => (
              <tr key={`${c.component}/${c.signal}`}>
                <td>{c.component}</td>
                <td>{c.signal.replaceAll("_", " ")}</td>
                <td>
                  <span className={`badge level-${c.level}`}>{c.level}</span>
                </td>
                <td>{c.source || "none"}</td>
                <td>{c.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
