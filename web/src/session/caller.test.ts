import { expect, it } from "vitest";
import { caller, scopeWord } from "./caller";

const session = (principal: string, name: string, provider?: string) => ({ tenant: "acme", principal, name, provider, scopes: [] });

it("knows a token's session", () => expect(caller(session("0198abc", "ci"))).toEqual({ name: "ci", by: "operator token", person: false }));
it("names a person and the provider", () =>
  expect(caller(session("https://id.example|alice|web", "Alice", "Example ID"))).toEqual({ name: "Alice", by: "Example ID", person: true }));
it("names the host of a provider without a name", () =>
  expect(caller(session("https://id.example/realm|alice|web", ""))).toEqual({ name: "alice", by: "id.example", person: true }));
it("reads escaped parts", () => expect(caller(session("odd%7Cissuer|a%2525|c", "")).name).toBe("a%25"));
it("shortens scopes", () => expect([scopeWord("telltale:read"), scopeWord("openid")]).toEqual(["read", "openid"]));
