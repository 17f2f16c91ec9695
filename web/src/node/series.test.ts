import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { lines, maxLines, seriesName, times } from "./series";

function series(metric: string, labels: Record<string, string>, points: (number | null)[]): Schemas["Series"] {
  return { metric, kind: "delta", unit: "bytes", labels, stat: "rate_per_s", start: "2026-01-01T00:00:00Z", points, stats: { covered_s: 0 } };
}

describe("seriesName", () => {
  it("drops the module and keeps what tells series apart", () => {
    expect(seriesName(series("network.if_rx_bytes", { interface: "eth0" }, []))).toBe("if_rx_bytes eth0");
    expect(seriesName(series("network.tcp_closes", {}, []))).toBe("tcp_closes");
  });
});

describe("lines", () => {
  it("keeps the busiest, in a fixed order, and counts the rest", () => {
    const all = Array.from({ length: maxLines + 2 }, (_, i) => series("storage.bytes", { device: `d${i}` }, [i, null]));
    const got = lines(all, ["storage.bytes"]);
    expect(got.left).toBe(2);
    expect(got.lines.map((l) => l.name)).toEqual(["bytes d2", "bytes d3", "bytes d4", "bytes d5", "bytes d6", "bytes d7", "bytes d8", "bytes d9"]);
  });
  it("takes only the chart's own metrics", () => {
    expect(lines([series("a.b", {}, [1])], ["c.d"])).toEqual({ lines: [], left: 0 });
  });
});

it("puts a point at the end of what it covers", () => {
  const q = { series: [series("a.b", {}, [1, 2])], step_s: 10 } as unknown as Schemas["MetricsQuery"];
  expect(times(q)).toEqual([1767225610, 1767225620]);
});
