import { expect, it } from "vitest";
import { agentLosses } from "./facts";

it("names what the agent dropped, and when", () => {
  const got = agentLosses({ lost_windows_network: 3, lost_from_unix_s_network: 1767225600, lost_to_unix_s_network: 1767225660, lost_windows_host: 0 });
  expect(got).toHaveLength(1);
  expect(got[0]?.[1]).toBe(3);
  expect(got[0]?.[0]).toMatch(/^windows of network dropped on the node, last from \d\d:\d\d to \d\d:\d\d$/);
});
