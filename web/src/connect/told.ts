// What happened at a tenant's door, in words.
import type { Schemas } from "../api/client";
import { spell } from "../layout/names";

export type Attempt = Schemas["ConnectAttempt"];

const titles: Record<string, string> = {
  none: "Nothing failed",
  no_token: "No credential",
  repeated: "Two credentials at once",
  malformed: "Malformed credential",
  checksum: "Mistyped token",
  unknown: "Unknown credential",
  expired: "Expired",
  revoked: "Revoked",
  network: "Called from another network",
  suspended: "Tenant suspended",
  csrf: "No CSRF token",
  issuer: "Issuer not trusted",
  signature: "Signature does not fit",
  algorithm: "Algorithm not accepted",
  type: "Not an access token",
  audience: "Made for another resource",
  tenant: "Not tied to this tenant",
  not_yet: "Not valid yet",
  inactive: "No longer active",
  cnf: "Bound to a key",
  claims: "Claims missing or malformed",
  no_role: "No role in this tenant",
  no_scope: "No scope of the role",
  scope: "Scope missing",
  issuer_unreachable: "Identity provider away",
  sign_in_over: "Sign-in no longer under way",
  sign_in_refused: "Sign-in refused",
};

/** The class of a failed check as a heading; one that this page does not know is spelt out. */
export function classTitle(kind: string): string {
  const known = titles[kind];
  if (known) return known;
  const words = spell(kind);
  return words ? words.slice(0, 1).toUpperCase() + words.slice(1) : "Unknown check";
}

/** The server's sentence without the class that it begins with. */
export function detailText(detail: string): string {
  return detail.replace(/^[a-z][a-z_ -]{1,40}: /, "");
}

/** Whether a check failed; a challenge and a read of the metadata are steps of connecting. */
export const hasFailed = (a: Pick<Attempt, "step">): boolean => a.step === "token_refused" || a.step === "scope_missing" || a.step === "call_refused";

const steps: Record<string, string> = {
  metadata_fetched: "Metadata read",
  challenge_sent: "Challenge sent",
  token_refused: "Refused",
  scope_missing: "Not allowed",
  token_accepted: "Accepted",
  call_refused: "Call refused",
};
export const stepWord = (step: string): string => steps[step] ?? spell(step);

/** The tone of a step, for its mark: the word says the same. */
export function stepTone(step: string): "good" | "bad" | "plain" {
  if (hasFailed({ step } as Attempt)) return "bad";
  return step === "token_accepted" ? "good" : "plain";
}

/** "7 attempts, 2 of them failed" */
export function tally(attempts: Attempt[]): string {
  const failed = attempts.filter(hasFailed).length;
  return `${attempts.length} ${attempts.length === 1 ? "attempt" : "attempts"}, ${failed === 0 ? "none" : failed} of them failed`;
}

const checks: Record<string, string> = { mcp_url: "Connector URL", metadata_url: "Metadata", issuer: "Identity provider", roles: "Roles" };
export const checkName = (name: string): string => checks[name] ?? classTitle(name);

const kinds: Record<string, string> = {
  metadata: "reads of the metadata",
  challenge: "challenges",
  refused: "unknown credentials",
  proven: "refused credentials",
  accepted: "accepted tokens",
  call: "refused calls",
  rate: "calls over the limit",
  stray: "refused calls of nobody known",
};

/** "12 older reads of the metadata (the newest 10 are kept)"; empty when all are there. */
export function droppedText(dropped: Schemas["ConnectDropped"][]): string {
  return dropped.map((d) => `${d.dropped.toLocaleString("en")} older ${kinds[d.kind] ?? spell(d.kind)} (the newest ${d.kept} are kept)`).join(", ");
}
