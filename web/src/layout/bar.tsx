import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, NavLink, useNavigate } from "react-router";
import { type Session, signOut } from "../api/client";
import { noteSession } from "../session/last";
import { connectAddress, signInAddress } from "../session/pages";
import { isSignedOut } from "../session/use-session";
import { Who } from "../session/who";
import mark from "../telltale.svg";
import { Problem } from "./problem";
import { ThemeSwitch } from "./theme-switch";

interface Props {
  tenant: string;
  session: Session | undefined;
  back?: string; // where a sign-in from here leads; without it there is no link to one
}

/** The top of every page of a tenant: where one is, and as whom. */
export function Bar({ tenant, session, back }: Props) {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();

  async function leave() {
    setBusy(true);
    setError(undefined);
    try {
      await signOut(tenant, session?.csrf ?? "");
    } catch (failure) {
      // Who is no longer signed in has what he wanted; everybody else must know.
      if (!isSignedOut(failure)) {
        setError(failure as Error);
        setBusy(false);
        return;
      }
    }
    noteSession(tenant, false);
    queries.clear();
    await navigate(`${signInAddress(tenant)}&left=1`);
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
        <NavLink to={connectAddress(tenant)} className="nav">
          Connector
        </NavLink>
        <span className="grow" />
        {session && <Who session={session} />}
        <ThemeSwitch />
        {session && (
          <button type="button" className="quiet" onClick={leave} disabled={busy}>
            {busy ? "Signing out…" : "Sign out"}
          </button>
        )}
        {!session && back && (
          <Link className="nav" to={signInAddress(tenant, back)}>
            Sign in
          </Link>
        )}
      </header>
      {error && (
        <div className="under-bar">
          <strong>You are still signed in.</strong> <Problem error={error} />
        </div>
      )}
    </>
  );
}
