import { describe, expect, it } from "vitest";
import { connectAddress, isSlug, pageAfter, providerAddress, signInAddress } from "./pages";

it.each([
  ["acme", true],
  ["a-1", true],
  ["", false],
  ["Acme", false],
  ["a/b", false],
  ["a".repeat(41), false],
])("%j is a slug: %s", (text, want) => expect(isSlug(text)).toBe(want));

describe("pageAfter", () => {
  it.each([
    ["/t/acme/ui/nodes/1?x=2", "/t/acme/ui/nodes/1?x=2"],
    ["/t/acme/ui?status=online", "/t/acme/ui?status=online"],
    ["/t/acme/ui", "/t/acme/ui"],
    ["/t/globex/ui/nodes/1", "/t/acme/ui"],
    ["/t/acme/uix", "/t/acme/ui"],
    ["https://evil.example/t/acme/ui/", "/t/acme/ui"],
    ["//evil.example", "/t/acme/ui"],
    ["", "/t/acme/ui"],
    [null, "/t/acme/ui"],
  ])("%j leads to %s", (back, want) => expect(pageAfter("acme", back)).toBe(want));
});

it("keeps the page on the way to the chooser and to the provider", () => {
  expect(signInAddress("acme")).toBe("/?tenant=acme");
  expect(signInAddress("acme", "/t/acme/ui/nodes/1")).toBe("/?tenant=acme&back=%2Ft%2Facme%2Fui%2Fnodes%2F1");
  expect(providerAddress("acme", "i 1", "/t/acme/ui/nodes/1")).toBe("/t/acme/api/v1/session/login?issuer=i+1&return=%2Ft%2Facme%2Fui%2Fnodes%2F1");
  expect(providerAddress("acme", "i", "/t/acme/ui?a=b", true)).toBe("/t/acme/api/v1/session/login?issuer=i&return=%2Ft%2Facme%2Fui%2F%3Fa%3Db&again=true");
});

it("addresses the self-test", () => {
  expect(connectAddress("acme")).toBe("/t/acme/connect");
  expect(connectAddress("acme", "r&1", true)).toBe("/t/acme/ui/connect?reference=r%261");
});
