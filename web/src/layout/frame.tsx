import { Navigate, Outlet, useLocation, useParams } from "react-router";
import { signInAddress } from "../session/pages";
import { isSignedOut, useSession } from "../session/use-session";
import { Bar } from "./bar";
import { Problem } from "./problem";

/** What surrounds every page of a tenant; sends away who is not signed in. */
export function Frame() {
  const tenant = useParams().tenant ?? "";
  const session = useSession(tenant);
  const { pathname, search } = useLocation();

  if (isSignedOut(session.error)) return <Navigate to={signInAddress(tenant, pathname + search)} replace />;
  return (
    <>
      <Bar tenant={tenant} session={session.data} />
      <main id="main" tabIndex={-1}>
        {session.data ? <Outlet /> : session.error ? <Problem error={session.error} /> : <p className="hint">Loading…</p>}
      </main>
    </>
  );
}
