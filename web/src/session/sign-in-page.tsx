import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { Prose } from "../layout/prose";
import { ThemeSwitch } from "../layout/theme-switch";
import mark from "../telltale.svg";
import { recallTenant, recallWanted } from "./last";
import { isSlug, pageAfter } from "./pages";
import { ProviderButtons } from "./provider-buttons";
import { TokenForm } from "./token-form";
import { useProviders } from "./use-session";
import { useSettled } from "./use-settled";

/** The chooser: a tenant, and the two ways in. */
export function SignInPage() {
  const [params] = useSearchParams();
  const [typed, setTyped] = useState(params.get("tenant") ?? recallTenant());
  const tenant = typed.trim();
  const settled = useSettled(tenant, 300);
  const navigate = useNavigate();
  const queries = useQueryClient();
  const tenantField = useRef<HTMLInputElement>(null);
  const ways = useRef<HTMLElement>(null);
  const [asked, setAsked] = useState(0);
  const named = isSlug(settled) ? settled : "";
  const known = useProviders(named, named !== "").isFetched && settled === tenant;
  const left = params.has("left");
  const back = params.get("back") ?? (left ? null : recallWanted(tenant));
  const elsewhere = pageAfter(tenant, back) !== `/t/${tenant}/ui`;

  useEffect(() => {
    document.title = "Sign in · Telltale";
  }, []);

  // Once the ways in are known the first one has the focus, unless the reader is somewhere else.
  useEffect(() => {
    if (known && document.activeElement === document.body) ways.current?.querySelector<HTMLElement>("a, input")?.focus();
  }, [known, asked]);

  function onward(e: FormEvent) {
    e.preventDefault();
    tenantField.current?.blur();
    setAsked((n) => n + 1);
  }

  return (
    <div className="sign-in">
      <header>
        <img src={mark} alt="" width="44" height="44" />
        <h1>Telltale</h1>
        <p>See why a node misbehaves, from the kernel up.</p>
      </header>
      <main className="card">
        {(left || elsewhere) && (
          <p className="notice" role="status">
            <Prose text={left ? "you are signed out of Telltale. Your identity provider may still know you." : "sign in to go on to the page you asked for."} />
          </p>
        )}
        <form onSubmit={onward}>
          <label htmlFor="tenant">Tenant</label>
          <input
            id="tenant"
            name="tenant"
            ref={tenantField}
            required
            pattern="[a-z0-9\-]{1,40}"
            title="1 to 40 of a-z, 0-9 and -"
            autoComplete="organization"
            autoCapitalize="none"
            spellCheck={false}
            placeholder="acme"
            value={typed}
            onChange={(e) => setTyped(e.target.value)}
            autoFocus={!tenant}
          />
        </form>
        <section ref={ways} aria-label="Ways to sign in">
          <ProviderButtons key={named} tenant={named} stale={settled !== tenant} back={back} again={left || params.has("again")} />
          <TokenForm
            tenant={tenant}
            ready={() => tenantField.current?.reportValidity() ?? false}
            done={async (session) => {
              queries.clear();
              queries.setQueryData([session.tenant, "session"], session);
              await navigate(pageAfter(session.tenant, back));
            }}
          />
        </section>
      </main>
      <footer>
        <ThemeSwitch />
      </footer>
    </div>
  );
}
