import { expect, it } from "vitest";
import { caller, scopeWord } from "./caller";

const session = (principal: string, name: string) => ({ tenant: "acme", principal, name, scopes: [] });

it("knows a token's session", () => expect(caller(session("0198abc", "ci"))).toEqual({ name: "ci", by: "operator token", person: false }));
it("names a person and the only provider", () =>
  expect(caller(session("https://id.example|alice|web", "Alice"), [{ id: "1", name: "Example ID" }])).toEqual({ name: "Alice", by: "Example ID", person: true }));
it("names the provider's host where there are several", () =>
  expect(
    caller(session("https://id.example/realm|alice|web", ""), [
      { id: "1", name: "A" },
      { id: "2", name: "B" },
    ]),
  ).toEqual({ name: "alice", by: "id.example", person: true }));
it("reads escaped parts", () => expect(caller(session("odd%7Cissuer|a%2525|c", "")).name).toBe("a%25"));
it("shortens scopes", () => expect([scopeWord("telltale:read"), scopeWord("openid")]).toEqual(["read", "openid"]));
it("names no host while the providers are not known", () => expect(caller(session("https://id.example|alice|web", "Alice")).by).toBe("identity provider"));
