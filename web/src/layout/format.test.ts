import { describe, expect, it } from "vitest";
import { ago, counted, moment, unknown, value } from "./format";

describe("value", () => {
  it("shows unknown as a dash, never as zero", () => {
    for (const v of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) expect(value(v, "count")).toBe(unknown);
  });
  it.each([
    [0, "count", false, "0"],
    [0, "bytes", true, "0 B/s"],
    [0.5, "count", true, "0.5/s"],
    [3, "count", true, "3/s"],
    [999, "count", false, "999"],
    [999.7, "count", false, "1k"],
    [1234, "count", false, "1.23k"],
    [-2500, "count", false, "-2.5k"],
    [12_345_678, "count", false, "12.3M"],
    [2048, "bytes", true, "2 KiB/s"],
    [1023 * 1024, "bytes", false, "1023 KiB"],
    [16.38 * 1024 * 1024, "bytes", true, "16.4 MiB/s"],
    [340, "ns", false, "340 ns"],
    [1500, "ns", false, "1.5 µs"],
    [999_900, "ns", false, "1 ms"],
    [1_500_000, "ns", false, "1.5 ms"],
    [2.9e9, "ns", true, "2.9 s/s"],
    [5e12, "ns", false, "5000 s"],
    [0.256, "ratio", false, "25.6 %"],
    [1, "ratio", false, "100 %"],
    [12, "seconds", false, "12 s"],
  ])("%d %s, rate %s, is %s", (v, unit, rate, want) => expect(value(v, unit, rate)).toBe(want));
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

it("counts in words", () => {
  expect([counted(1, "node"), counted(2, "node"), counted(3, "series", "series")]).toEqual(["1 node", "2 nodes", "3 series"]);
});

it("shows a moment with its day, and a broken one as unknown", () => {
  expect(moment("2026-03-04T05:06:07Z")).toMatch(/4/);
  expect(moment("soon")).toBe(unknown);
});
