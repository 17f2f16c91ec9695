import { expect, it } from "vitest";
import { groups, subject } from "./unhealthy";

const share = (component: string, signal: string, reason: string, nodes = 1) => ({ component, signal, level: "degraded" as const, reason, nodes, example: { node: "n", name: "n" } });

it("tells the same reason once", () => {
  const got = groups([share("network", "tcp_closes", "lacks CAP_BPF"), share("storage", "latency", "lacks CAP_BPF"), share("host", "disks", "slow", 3)]);
  expect(got.map((g) => [subject(g), g.reason, g.nodes])).toEqual([
    ["host disks", "slow", 3],
    ["2 signals of network, storage", "lacks CAP_BPF", 1],
  ]);
  expect(got[1]?.signals).toEqual(["network TCP closes", "storage latency"]);
});

it("keeps apart what holds for different numbers of nodes", () => expect(groups([share("a", "b", "r", 1), share("a", "c", "r", 2)])).toHaveLength(2));
