import { type FormEvent, useRef, useState } from "react";
import { ApiError, type Session, signIn } from "../api/client";
import { Problem } from "../layout/problem";
import { tokenAdvice } from "./advice";
import { noteSession } from "./last";

interface Props {
  tenant: string;
  ready: () => boolean; // the tenant is named; says so to the reader when it is not
  done: (session: Session) => Promise<void>;
}

/** The second way in: an operator token, exchanged for a session. */
export function TokenForm({ tenant, ready, done }: Props) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const field = useRef<HTMLInputElement>(null);

  async function submit(e: FormEvent) {
    e.preventDefault();
    if (!ready()) return;
    setBusy(true);
    setError(undefined);
    try {
      const session = await signIn(tenant, token.trim());
      setToken("");
      noteSession(session.tenant, true);
      await done(session);
    } catch (err) {
      setError(err instanceof ApiError && err.status === 401 ? new ApiError(401, { ...err.problem, next: [tokenAdvice(location.hostname)] }) : (err as Error));
      field.current?.focus();
    } finally {
      setBusy(false);
    }
  }

  return (
    <form onSubmit={submit} aria-busy={busy}>
      <label htmlFor="token">Operator token</label>
      <input id="token" name="token" ref={field} required type="password" autoComplete="off" spellCheck={false} placeholder="tt_…" aria-describedby="token-help" value={token} onChange={(e) => setToken(e.target.value)} />
      <p id="token-help" className="hint">
        Exchanged for a session on the server. The token is not kept in this browser.
      </p>
      {error && <Problem error={error} />}
      <button type="submit" disabled={busy}>
        {busy ? "Signing in…" : "Sign in"}
      </button>
    </form>
  );
}
