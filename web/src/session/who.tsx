import type { Session } from "../api/client";
import { moment } from "../layout/format";
import { caller, scopeWord } from "./caller";

/** Who is signed in, by what and for what; the button opens the whole of it. */
export function Who({ session }: { session: Session }) {
  const { name, by, person } = caller(session);
  const scopes = session.scopes.map(scopeWord);
  return (
    <>
      <button type="button" className="who" popoverTarget="account">
        <span className="unseen">Signed in as </span>
        <b>{name}</b>
        <small>
          {by} · {scopes.join(", ")}
        </small>
      </button>
      <div id="account" className="account" popover="auto" role="group" aria-label="Who is signed in">
        <h2>{name}</h2>
        <dl>
          <dt>Signed in with</dt>
          <dd>{by}</dd>
          <dt>May</dt>
          <dd>
            <ul className="scopes">
              {session.scopes.map((s) => (
                <li key={s}>
                  <code>{s}</code>
                </li>
              ))}
            </ul>
          </dd>
          {session.expires_at && (
            <>
              <dt>Ends at the latest</dt>
              <dd>{moment(session.expires_at)}</dd>
            </>
          )}
          <dt>{person ? "Principal" : "Session"}</dt>
          <dd>
            <code>{session.principal}</code>
          </dd>
        </dl>
      </div>
    </>
  );
}
