import { describe, expect, it } from "vitest";
import { allZero, axisStart, dots, lastKnown } from "./points";

it("finds the newest known point and treats gaps as unknown", () => {
  expect(lastKnown([1, 0, null])).toBe(1);
  expect(lastKnown([null, null])).toBe(-1);
  expect(lastKnown([])).toBe(-1);
});

it("does not take unknown for zero", () => {
  expect([allZero([0, null, 0]), allZero([0, 1]), allZero([null]), allZero([])]).toEqual([true, false, false, false]);
});

describe("dots", () => {
  it("marks every point while there are few", () => expect(dots([null, 1, 2, null])).toEqual([1, 2]));
  it("marks the lone ones among many", () => {
    const many = Array.from({ length: 20 }, () => 1);
    expect(dots([5, null, ...many, null, 7])).toEqual([0, 23]);
  });
});

describe("axisStart", () => {
  const times = Array.from({ length: 90 }, (_, i) => (i + 1) * 10);
  const since = (at: number) => times.map((t) => (t >= at ? 1 : null));
  it("keeps the span that data fills a third of", () => expect(axisStart(times, [since(600)], 10, 0, 900)).toEqual({ from: 0, fitted: false }));
  it("begins at the earliest data of a young node", () => expect(axisStart(times, [since(900), since(700)], 10, 0, 900)).toEqual({ from: 690, fitted: true }));
  it("shows a minute at least", () => expect(axisStart(times, [since(900)], 10, 0, 900)).toEqual({ from: 840, fitted: true }));
  it("keeps the span when nothing is known", () => expect(axisStart(times, [since(1e9)], 10, 0, 900)).toEqual({ from: 0, fitted: false }));
});
