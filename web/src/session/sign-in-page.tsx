import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { ApiError, signIn } from "../api/client";
import { Problem } from "../layout/problem";
import { ThemeSwitch } from "../layout/theme-switch";
import mark from "../telltale.svg";
import { tokenAdvice } from "./advice";

const lastTenant = "telltale.tenant";

/** The chooser: a tenant and an operator token, exchanged for a session. */
export function SignInPage() {
  const [params] = useSearchParams();
  const [tenant, setTenant] = useState(params.get("tenant") ?? localStorage.getItem(lastTenant) ?? "");
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const navigate = useNavigate();
  const queries = useQueryClient();
  const tokenField = useRef<HTMLInputElement>(null);

  useEffect(() => {
    document.title = "Sign in · Telltale";
    if (tenant) tokenField.current?.focus();
    // eslint-disable-next-line react-hooks/exhaustive-deps -- once, for what the address or the last visit named
  }, []);

  async function submit(e: FormEvent) {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      const session = await signIn(tenant.trim(), token.trim());
      setToken("");
      localStorage.setItem(lastTenant, session.tenant);
      queries.clear();
      queries.setQueryData([session.tenant, "session"], session);
      const back = params.get("back");
      // Only an address of this tenant's pages is followed.
      const own = `/t/${session.tenant}/ui`;
      await navigate(back === own || back?.startsWith(`${own}/`) ? back : own);
    } catch (err) {
      setError(err instanceof ApiError && err.status === 401 ? new ApiError(401, { ...err.problem, next: [tokenAdvice(location.hostname)] }) : (err as Error));
      tokenField.current?.focus();
    } finally {
      setBusy(false);
    }
  }

  return (
    <div className="sign-in">
      <header>
        <img src={mark} alt="" width="44" height="44" />
        <h1>Telltale</h1>
        <p>See why a node misbehaves, from the kernel up.</p>
      </header>
      <main>
        <form onSubmit={submit} aria-busy={busy}>
          <label htmlFor="tenant">Tenant</label>
          <input id="tenant" name="tenant" required pattern="[a-z0-9\-]{1,40}" title="1 to 40 of a-z, 0-9 and -" autoComplete="organization" autoCapitalize="none" spellCheck={false} placeholder="acme" value={tenant} onChange={(e) => setTenant(e.target.value)} autoFocus={!tenant} />
          <label htmlFor="token">Operator token</label>
          <input id="token" name="token" ref={tokenField} required type="password" autoComplete="off" spellCheck={false} placeholder="tt_…" aria-describedby="token-help" value={token} onChange={(e) => setToken(e.target.value)} />
          <p id="token-help" className="hint">
            Exchanged for a session on the server. The token is not kept in this browser.
          </p>
          {error && <Problem error={error} />}
          <button type="submit" disabled={busy}>
            {busy ? "Signing in…" : "Sign in"}
          </button>
        </form>
      </main>
      <footer>
        <ThemeSwitch />
      </footer>
    </div>
  );
}
