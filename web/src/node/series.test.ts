import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { lines, maxLines, seriesId, seriesName, times } from "./series";

function series(metric: string, labels: Record<string, string>, points: (number | null)[]): Schemas["Series"] {
  return { metric, kind: "delta", unit: "bytes", labels, stat: "rate_per_s", start: "2026-01-01T00:00:00Z", points, stats: { covered_s: 0 } };
}

describe("names", () => {
  const eth0 = series("network.if_rx_bytes", { interface: "eth0" }, []);
  it("has an id that drops the module and keeps what tells series apart", () => {
    expect(seriesId(eth0)).toBe("if_rx_bytes eth0");
    expect(seriesId(series("network.tcp_closes", {}, []))).toBe("tcp_closes");
  });
  it("speaks to people, and says the metric only where a chart has several", () => {
    expect(seriesName(eth0, false)).toBe("eth0 received");
    expect(seriesName(eth0, true)).toBe("eth0");
    expect(seriesName(series("process.forks", {}, []), true)).toBe("forks");
  });
});

describe("lines", () => {
  it("keeps the busiest, in a fixed order, and counts the rest", () => {
    const all = Array.from({ length: maxLines + 2 }, (_, i) => series("storage.bytes", { device: `d${i}` }, [i + 1, null]));
    const got = lines(all, ["storage.bytes"]);
    expect(got.left).toBe(2);
    expect(got.lines.map((l) => l.id)).toEqual(["bytes d2", "bytes d3", "bytes d4", "bytes d5", "bytes d6", "bytes d7"]);
    expect(got.lines[0]).toMatchObject({ name: "d2", metric: "storage.bytes device=d2" });
  });
  it("puts series at zero last and leaves none of them out", () => {
    const zeros = Array.from({ length: maxLines }, (_, i) => series("a.b", { x: `${i}` }, [0, null]));
    const got = lines([...zeros, series("a.b", { x: "z" }, [0, 3]), series("a.b", { x: "unknown" }, [null, null])], ["a.b"]);
    expect(got.left).toBe(0);
    expect(got.lines.slice(0, 3).map((l) => l.name)).toEqual(["unknown", "z", "0"]);
  });
  it("takes only the chart's own metrics", () => {
    expect(lines([series("a.b", {}, [1])], ["c.d"])).toEqual({ lines: [], left: 0 });
  });
});

it("puts a point at the end of what it covers", () => {
  const q = { series: [series("a.b", {}, [1, 2])], step_s: 10 } as unknown as Schemas["MetricsQuery"];
  expect(times(q)).toEqual([1767225610, 1767225620]);
});
