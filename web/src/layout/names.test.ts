import { expect, it } from "vitest";
import { byModule, metricName, moduleOf } from "./names";

it.each([
  ["process.runq_wait_ns", "run-queue wait"],
  ["process.oom_kills", "OOM kills"],
  ["process.forks", "forks"],
  ["network.rx_bytes", "received"],
  ["network.if_tx_bytes", "sent"],
  ["network.tcp_sent_bytes", "TCP sent bytes"],
  ["network.tcp_active_opens", "TCP active opens"],
  ["host.cpu_busy_ratio", "CPU busy"],
  ["host.io_pressure_ratio", "I/O pressure"],
  ["host.memory_total_bytes", "memory total bytes"],
  ["storage.bytes", "bytes"],
  ["storage.total_bytes", "throughput"],
  ["future.some_new_thing", "some new thing"],
])("%s is %s", (metric, want) => expect(metricName(metric)).toBe(want));

it("knows a metric's module", () => expect([moduleOf("a.b"), moduleOf("odd")]).toEqual(["a", ""]));

it("groups by module in the order of the pages", () => {
  const rows = ["process.a", "new.b", "host.c", "process.d"].map((metric) => ({ metric }));
  expect(byModule(rows).map(([m, r]) => [m, r.length])).toEqual([
    ["host", 1],
    ["process", 2],
    ["new", 1],
  ]);
});
