import type { Schemas } from "../api/client";

/** Each signal with its level, source, and the reason when it is not full. */
export function Signals({ capabilities }: { capabilities: Schemas["Capability"][] }) {
  return (
    <section aria-labelledby="signals-heading">
      <h2 id="signals-heading">What this node can measure</h2>
      {capabilities.length === 0 ? (
        <p className="empty">The agent has not reported yet.</p>
      ) : (
        <div className="scroll">
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
      )}
    </section>
  );
}
