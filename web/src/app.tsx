// The addresses of the dashboard. `/` is the chooser; a tenant's pages live
// below /t/{tenant}/ui.
import { Navigate, Route, Routes, useLocation, useParams } from "react-router";
import { ConnectPage } from "./connect/connect-page";
import { FleetPage } from "./fleet/fleet-page";
import { Frame } from "./layout/frame";
import { NotHere } from "./layout/not-here";
import { NodePage } from "./node/node-page";
import { SignInPage } from "./session/sign-in-page";

export function App() {
  return (
    <Routes>
      <Route path="/" element={<SignInPage />} />
      <Route path="/t/:tenant" element={<Navigate to="ui" replace />} />
      <Route path="/t/:tenant/connect" element={<ConnectPage />} />
      {/* Where a sign-in that began on that page leads. */}
      <Route path="/t/:tenant/ui/connect" element={<ToConnect />} />
      <Route path="/t/:tenant/ui" element={<Frame />}>
        <Route index element={<FleetPage />} />
        <Route path="nodes/:node" element={<NodePage />} />
        <Route path="*" element={<NotHere />} />
      </Route>
      <Route path="*" element={<NotHere />} />
    </Routes>
  );
}

function ToConnect() {
  const { tenant } = useParams();
  return <Navigate to={`/t/${tenant}/connect${useLocation().search}`} replace />;
}
