import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useParams, useSearchParams } from "react-router";
import { Bar } from "../layout/bar";
import { Problem } from "../layout/problem";
import { recallWanted } from "../session/last";
import { connectAddress, signInAddress } from "../session/pages";
import { useSession } from "../session/use-session";
import { Attempts } from "./attempts";
import { ConnectorCard } from "./connector-card";
import { LookupCard } from "./lookup-card";
import { droppedText } from "./told";
import { refreshMs, useConnection } from "./use-connect";

const admin = "telltale:admin";

/** The connector self-test: open to everybody, with values for the tenant's administrators. */
export function ConnectPage() {
  const tenant = useParams().tenant ?? "";
  const [params, setParams] = useSearchParams();
  const reference = params.get("reference") ?? "";
  const connection = useConnection(tenant);
  const isAdmin = connection.data?.admin ?? false;
  const dropped = droppedText(connection.data?.dropped ?? []);
  const session = useSession(tenant, { onlyIfLikely: !isAdmin });
  const queries = useQueryClient();
  const signedIn = session.error ? undefined : session.data;
  // A sign-in from here leads back here.
  const here = connectAddress(tenant, reference, true);

  useEffect(() => {
    document.title = `Connector · ${tenant} · Telltale`;
  }, [tenant]);

  // The answer changes with who asks.
  const over = connection.data && !isAdmin && signedIn?.scopes.includes(admin);
  useEffect(() => {
    if (over) void queries.invalidateQueries({ queryKey: [tenant, "session"] });
  }, [over, queries, tenant]);

  return (
    <>
      <Bar tenant={tenant} session={signedIn} back={here} />
      <main id="main" tabIndex={-1}>
        <div className="heading">
          <h1>Connector</h1>
          <span className="hint">why a client can or cannot connect to {tenant}</span>
        </div>
        <div className="halves">
          <LookupCard tenant={tenant} reference={reference} onReference={(r) => setParams(r ? { reference: r } : {})} again={isAdmin ? undefined : `${signInAddress(tenant, recallWanted(tenant) ?? (signedIn ? here : undefined))}&again=1`} />
          {connection.data ? <ConnectorCard connection={connection.data} /> : !connection.error && <p className="card hint">Loading…</p>}
        </div>
        {connection.error && <Problem error={connection.error} />}
        {isAdmin && connection.data && <Attempts tenant={tenant} attempts={connection.data.attempts ?? []} chosen={reference} />}
        {isAdmin && <p className="hint">Refreshed every {refreshMs / 1000} s while this page is visible. The newest attempts of each kind are kept for 24 hours, without any credential.{dropped && ` Not kept: ${dropped}.`}</p>}
        {connection.data && !isAdmin && (
          <p className="hint">
            {signedIn ? (
              <>The last attempts, and what a check expected and received, are shown to administrators of {tenant}: ask one, with the reference id.</>
            ) : (
              <>
                <Link to={signInAddress(tenant, here)}>Sign in as an administrator</Link> to see the last attempts, and what each check expected and received.
              </>
            )}
          </p>
        )}
      </main>
    </>
  );
}
