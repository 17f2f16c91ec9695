import type { Session } from "../api/client";

const whole = (part: string) => part.replaceAll("%7C", "|").replaceAll("%25", "%");

/** What a person sees of who is signed in. */
export interface Caller {
  name: string;
  by: string; // "operator token", or the identity provider
  person: boolean;
}

/** A person's principal is issuer|subject|client; a token's session has a plain id. A provider without a name is known by its host. */
export function caller(session: Session): Caller {
  const parts = session.principal.split("|").map(whole);
  if (parts.length !== 3) return { name: session.name || "unnamed token", by: "operator token", person: false };
  const [issuer = "", subject = ""] = parts;
  return { name: session.name || subject, by: session.provider || hostOf(issuer), person: true };
}

function hostOf(issuer: string): string {
  return URL.canParse(issuer) ? new URL(issuer).host : issuer;
}

/** "telltale:read" → "read". */
export const scopeWord = (scope: string): string => scope.replace(/^telltale:/, "");
