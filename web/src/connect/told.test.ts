import { expect, it } from "vitest";
import { type Attempt, checkName, classTitle, detailText, droppedText, hasFailed, stepTone, stepWord, tally } from "./told";

it.each([
  ["no_role", "No role in this tenant"],
  ["none", "Nothing failed"],
  ["some_new_check", "Some new check"],
  ["", "Unknown check"],
])("class %j is %s", (kind, want) => expect(classTitle(kind)).toBe(want));

it.each([
  ["no role: the token is good, but its holder has no role in this tenant", "the token is good, but its holder has no role in this tenant"],
  ["sign-in over: this browser has no such sign-in under way", "this browser has no such sign-in under way"],
  ["no credential was sent", "no credential was sent"],
  ["outside_selector: it concerns nodes", "it concerns nodes"],
  ["the URL is http://x: odd", "the URL is http://x: odd"],
])("%s", (detail, want) => expect(detailText(detail)).toBe(want));

it.each([
  ["metadata_fetched", "Metadata read", "plain", false],
  ["challenge_sent", "Challenge sent", "plain", false],
  ["token_refused", "Refused", "bad", true],
  ["scope_missing", "Not allowed", "bad", true],
  ["token_accepted", "Accepted", "good", false],
  ["call_refused", "Call refused", "bad", true],
  ["some_step", "some step", "plain", false],
])("step %s is %s", (step, word, tone, failed) => {
  expect([stepWord(step), stepTone(step), hasFailed({ step } as Attempt)]).toEqual([word, tone, failed]);
});

it("counts what failed", () => {
  const of = (...s: string[]) => s.map((step) => ({ step }) as Attempt);
  expect(tally(of("token_accepted", "token_refused", "scope_missing"))).toBe("3 attempts, 2 of them failed");
  expect(tally(of("challenge_sent"))).toBe("1 attempt, none of them failed");
});

it("names the checks of the set-up", () => expect([checkName("issuer"), checkName("new_check")]).toEqual(["Identity provider", "New check"]));

it("says what was dropped", () => {
  expect(droppedText([])).toBe("");
  expect(droppedText([{ kind: "metadata", kept: 10, dropped: 1200 }, { kind: "rate", kept: 10, dropped: 3 }])).toBe(
    "1,200 older reads of the metadata (the newest 10 are kept), 3 older calls over the limit (the newest 10 are kept)",
  );
});
