import { expect, it } from "vitest";
import { tokenAdvice } from "./advice";

it.each(["localhost", "acme.localhost", "127.0.0.1", "127.8.8.8", "[::1]"])("names make up on %s", (host) => expect(tokenAdvice(host)).toContain("make up"));
it.each(["telltale.example.com", "10.0.0.1", "127.0.0.1.example.com", "localhost.example.com"])("names the administrator on %s", (host) => {
  expect(tokenAdvice(host)).toContain("ask your administrator");
  expect(tokenAdvice(host)).not.toContain("make up");
});
