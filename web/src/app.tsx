// The addresses of the dashboard. `/` is the chooser; a tenant's pages live
// below /t/{tenant}/ui.
import { Navigate, Route, Routes } from "react-router";
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
      <Route path="/t/:tenant/ui" element={<Frame />}>
        <Route index element={<FleetPage />} />
        <Route path="nodes/:node" element={<NodePage />} />
        <Route path="*" element={<NotHere />} />
      </Route>
      <Route path="*" element={<NotHere />} />
    </Routes>
  );
}
