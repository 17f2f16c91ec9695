import { expect, it } from "vitest";
import { lastKnown } from "./last-known";

it("finds the newest known point and treats gaps as unknown", () => {
  expect(lastKnown([1, 0, null])).toBe(1);
  expect(lastKnown([null, null])).toBe(-1);
  expect(lastKnown([])).toBe(-1);
});
