import { useQueryClient } from "@tanstack/react-query";
import { Link, Navigate, Outlet, useLocation, useNavigate, useParams } from "react-router";
import { ApiError, signOut } from "../api/client";
import { useSession } from "../session/use-session";
import mark from "../telltale.svg";
import { Problem } from "./problem";
import { ThemeSwitch } from "./theme-switch";

/** What surrounds every page of a tenant; sends away who is not signed in. */
export function Frame() {
  const tenant = useParams().tenant ?? "";
  const session = useSession(tenant);
  const { pathname, search } = useLocation();
  const navigate = useNavigate();
  const queries = useQueryClient();

  if (session.error instanceof ApiError && session.error.status === 401) {
    return <Navigate to={`/?${new URLSearchParams({ tenant, back: pathname + search })}`} replace />;
  }

  async function leave() {
    if (session.data?.csrf) await signOut(tenant, session.data.csrf).catch(() => undefined);
    queries.clear();
    await navigate(`/?${new URLSearchParams({ tenant })}`);
  }

  return (
    <>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="bar">
        <Link to={`/t/${tenant}/ui`} className="brand">
          <img src={mark} alt="" width="24" height="24" /> Telltale
        </Link>
        <span className="tenant" title="tenant">
          {tenant}
        </span>
        <span className="grow" />
        {session.data && (
          <span className="who" title={session.data.scopes.join(" ")}>
            {session.data.name || session.data.principal}
          </span>
        )}
        <ThemeSwitch />
        <button type="button" className="quiet" onClick={leave}>
          Sign out
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {session.error ? <Problem error={session.error} /> : session.data ? <Outlet /> : <p className="hint">Loading…</p>}
      </main>
    </>
  );
}
