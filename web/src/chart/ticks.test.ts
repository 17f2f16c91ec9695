import { describe, expect, it } from "vitest";
import { ticks } from "./ticks";

describe("ticks", () => {
  it.each([
    [19.1 * 1024 ** 2, "bytes", true, ["0", "5 MiB/s", "10 MiB/s", "15 MiB/s", "20 MiB/s"]],
    [546, "bytes", true, ["0", "200 B/s", "400 B/s", "600 B/s"]],
    [1023, "bytes", false, ["0", "500 B", "1000 B", "1500 B"]],
    [2_100_000, "ns", false, ["0", "1 ms", "2 ms", "3 ms"]],
    [0.5, "count", true, ["0", "0.2/s", "0.4/s", "0.6/s"]],
    [40_000, "count", false, ["0", "10k", "20k", "30k", "40k"]],
    [0.9, "ratio", false, ["0", "50 %", "100 %"]],
  ])("%d %s, rate %s", (max, unit, rate, want) => expect(ticks(max, unit, rate).labels).toEqual(want));

  it.each(["bytes", "ns", "count", "ratio", "seconds"])("has distinct labels and reaches the highest value: %s", (unit) => {
    for (let e = -9; e < 15; e += 0.37) {
      const max = 10 ** e;
      const got = ticks(max, unit, true);
      expect(new Set(got.labels).size).toBe(got.labels.length);
      expect(got.at.length).toBeGreaterThanOrEqual(3);
      expect(got.at.length).toBeLessThanOrEqual(6);
      expect(got.top).toBeGreaterThanOrEqual(max * 0.999999);
    }
  });
  it("has an axis for nothing but zeros", () => expect(ticks(0, "bytes", true).at[0]).toBe(0));
});
