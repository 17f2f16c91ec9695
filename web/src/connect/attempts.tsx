import { useState } from "react";
import { Link } from "react-router";
import { moment, unknown } from "../layout/format";
import { Prose } from "../layout/prose";
import { connectAddress } from "../session/pages";
import { type Attempt, classTitle, detailText, hasFailed, stepTone, stepWord, tally } from "./told";
import { Values } from "./values";

/** The last attempts of a tenant, the newest first, with what the failed check wanted and found. */
export function Attempts({ tenant, attempts, chosen }: { tenant: string; attempts: Attempt[]; chosen: string }) {
  const [failedOnly, setFailedOnly] = useState(false);
  const shown = failedOnly ? attempts.filter(hasFailed) : attempts;
  return (
    <section aria-labelledby="attempts-heading">
      <div className="heading">
        <h2 id="attempts-heading">Last attempts</h2>
        <span className="hint">{tally(attempts)}</span>
        <label className="check">
          <input type="checkbox" checked={failedOnly} onChange={(e) => setFailedOnly(e.target.checked)} /> Failed only
        </label>
      </div>
      {attempts.length === 0 && <p className="empty">No attempt in the last 24 hours. Add the connector URL to a client: what it does appears here by itself.</p>}
      {attempts.length > 0 && shown.length === 0 && <p className="empty">None of them failed.</p>}
      {shown.length > 0 && (
        <div className="scroll" role="region" aria-label="Table of attempts" tabIndex={0}>
          <table className="attempts">
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col">Step</th>
                <th scope="col">Check</th>
                <th scope="col">Surface</th>
                <th scope="col">Client</th>
                <th scope="col">From</th>
                <th scope="col">Reference</th>
              </tr>
            </thead>
            {shown.map((a) => (
              <Row key={a.reference_id} tenant={tenant} attempt={a} chosen={a.reference_id === chosen} />
            ))}
          </table>
        </div>
      )}
    </section>
  );
}

function Row({ tenant, attempt: a, chosen }: { tenant: string; attempt: Attempt; chosen: boolean }) {
  const failed = hasFailed(a);
  const more = a.expected || a.received || a.issuer || a.principal;
  return (
    <tbody className={failed ? "failed" : undefined} data-reference={a.reference_id} aria-current={chosen || undefined}>
      <tr className={more || failed ? "opens" : undefined}>
        <th scope="row" className="whole">
          <time dateTime={a.at}>{moment(a.at)}</time>
        </th>
        <td>
          <span className={`badge tone-${stepTone(a.step)}`}>{stepWord(a.step)}</span>
        </td>
        <td>{a.class === "none" ? <span className="hint">{unknown}</span> : classTitle(a.class)}</td>
        <td data-label="at">{a.surface}</td>
        <td className="client" data-label="client">
          {a.client || unknown}
        </td>
        <td className="whole" data-label="from">{a.from || unknown}</td>
        <td>
          <Link to={connectAddress(tenant, a.reference_id)}>
            <code>{a.reference_id}</code>
          </Link>
        </td>
      </tr>
      {(more || failed) && (
        <tr className="detail">
          <td colSpan={7}>
            {failed && (
              <p>
                <Prose text={`${detailText(a.detail)}.`} /> {a.next.map((n) => <Prose key={n} text={`${n}.`} />)}
              </p>
            )}
            <Values of={a} />
          </td>
        </tr>
      )}
    </tbody>
  );
}
