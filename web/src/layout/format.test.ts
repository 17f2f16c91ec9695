import { describe, expect, it } from "vitest";
import { ago, nanoseconds, short, unknown, value } from "./format";

describe("short", () => {
  it.each([
    [0, "0"],
    [0.5, "0.5"],
    [999, "999"],
    [1000, "1k"],
    [1234, "1.23k"],
    [12_345_678, "12.3M"],
    [-2500, "-2.5k"],
  ])("%d is %s", (v, want) => expect(short(v)).toBe(want));
});

describe("value", () => {
  it("shows unknown as a dash, never as zero", () => {
    for (const v of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) expect(value(v, "count")).toBe(unknown);
  });
  it.each([
    [2048, "bytes", true, "2kB/s"],
    [0.256, "ratio", false, "25.6 %"],
    [1_500_000, "ns", false, "1.5 ms"],
    [3, "count", true, "3/s"],
  ])("%d %s", (v, unit, rate, want) => expect(value(v, unit, rate)).toBe(want));
});

describe("nanoseconds", () => {
  it.each([
    [340, "340 ns"],
    [1500, "1.5 µs"],
    [2e9, "2 s"],
  ])("%d is %s", (v, want) => expect(nanoseconds(v)).toBe(want));
});

describe("ago", () => {
  it.each([
    [null, "never"],
    [4.2, "4 s ago"],
    [-3, "0 s ago"],
    [200, "3 min ago"],
    [7200, "2 h ago"],
  ])("%s is %s", (v, want) => expect(ago(v)).toBe(want));
});
