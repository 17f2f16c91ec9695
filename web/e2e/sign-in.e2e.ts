import { expect, it } from "vitest";
import { accessible, context, everyWay, fresh, page, ready, shoot, signIn, signInAs, tenant } from "./page";

const chooser = (slug: string) => page.goto(`${ready.base_url}/?tenant=${slug}`);
const fleet = () => page.getByRole("heading", { name: "Fleet" }).waitFor();

it("signs people in at their identity provider, and out", async () => {
  await page.goto(ready.dashboard_url);
  await page.getByLabel("Tenant").fill("acme");
  const button = page.getByRole("link", { name: "Sign in with Demo identity provider" });
  await button.waitFor();
  await everyWay("sign-in");
  // By keyboard alone: from the tenant to the first way in.
  await page.getByLabel("Tenant").press("Enter");
  await page.waitForFunction(() => document.activeElement?.textContent?.startsWith("Sign in with"));
  await signInAs("alice");
  await fleet();
  const who = page.getByRole("button", { name: /^Signed in as Alice/ });
  await who.getByText("Demo identity provider · read, payloads, diagnose, act, approve").waitFor();
  await who.click();
  await page.getByRole("group", { name: "Who is signed in" }).getByText("telltale:approve").waitFor();
  await shoot("who");
  await accessible();
  await page.keyboard.press("Escape");

  // The write of the sign-out carries the session's CSRF token.
  const [request] = await Promise.all([page.waitForRequest((r) => r.method() === "DELETE" && r.url().endsWith("/t/acme/api/v1/session")), page.getByRole("button", { name: "Sign out" }).click()]);
  expect(request.headers()["telltale-csrf"]).toMatch(/^[\w-]{43}$/);
  await page.getByText("You are signed out of Telltale").waitFor();
  await page.goto(`${ready.base_url}/t/acme/ui`);
  await page.getByRole("heading", { name: "Telltale" }).waitFor();

  // After a sign-out the provider asks anew.
  await page.goto(`${ready.base_url}/?tenant=acme&left=1`);
  await signInAs("bob");
  await fleet();
  expect(await page.getByRole("button", { name: /^Signed in as Bob/ }).innerText()).toMatch(/· read$/);
});

it("keeps the page through a sign-in, and through a session that ends", async () => {
  const wanted = `${ready.base_url}/t/globex/ui?status=online`;
  await page.goto(wanted);
  await page.getByText("Sign in to go on to the page you asked for").waitFor();
  await signInAs("carol");
  await fleet();
  expect(new URL(page.url()).search).toBe("?status=online");
  // The session ends elsewhere; the page notices by itself.
  const { name, value } = (await context.cookies()).find((c) => c.name.endsWith("_globex")) ?? { name: "", value: "" };
  const session = `${tenant("globex").rest_url}/session`;
  const cookie = `${name}=${value}`;
  const { csrf } = (await (await fetch(session, { headers: { Cookie: cookie } })).json()) as { csrf: string };
  expect((await fetch(session, { method: "DELETE", headers: { Cookie: cookie } })).status, "a write without the CSRF token").toBe(403);
  expect((await fetch(session, { method: "DELETE", headers: { Cookie: cookie, "Telltale-CSRF": csrf } })).status).toBe(204);
  await page.getByRole("heading", { name: "Telltale" }).waitFor({ timeout: 20_000 });
  expect(new URL(page.url()).searchParams.get("back")).toBe("/t/globex/ui/?status=online");
});

it("explains a refused sign-in by its reference, and shows it to an administrator", async () => {
  await chooser("acme");
  await signInAs("carol");
  await page.getByRole("heading", { name: "Connector", exact: true }).waitFor();
  const reference = new URL(page.url()).searchParams.get("reference") ?? "";
  expect(new URL(page.url()).pathname).toBe("/t/acme/connect");
  const verdict = () => page.getByRole("region", { name: "What went wrong" });
  await verdict().getByText("No role in this tenant", { exact: true }).waitFor();
  expect(await verdict().innerText()).toMatch(/no_role[\s\S]*Next: ask an administrator/);
  expect(await page.locator("body").innerText(), "values are for administrators").not.toContain("globex-sre");
  await page.getByText(`${ready.base_url}/t/acme/mcp`, { exact: true }).waitFor();
  expect(await page.getByRole("table").count()).toBe(0);
  await everyWay("connect-refused");

  // Another account at the same provider, from there.
  await page.getByRole("link", { name: "Sign in as somebody else" }).click();
  await signInAs("erin");
  await verdict().getByText("No role in this tenant", { exact: true }).waitFor();

  await fresh();
  await page.goto(`${ready.base_url}/t/acme/connect`);
  await page.getByText("Something refused?").waitFor();
  await everyWay("connect");
  await page.getByLabel("Reference id").fill("no-such-reference");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("No attempt of the last 24 hours").waitFor();
  await shoot("connect-unknown");
  await page.getByRole("link", { name: "Sign in as an administrator" }).click();
  await signInAs("dana");
  await page.waitForURL(`${ready.base_url}/t/acme/connect**`);
  const attempt = page.locator(`tbody[data-reference="${reference}"]`);
  await attempt.waitFor();
  const told = await attempt.innerText();
  for (const part of ["Not allowed", "No role in this tenant", "dashboard", "Expected", "Received", "globex-sre", ready.issuer]) expect(told).toContain(part);
  await page.getByText(/Identity provider: fine/).waitFor();
  await everyWay("connect-admin");

  // What a client does appears by itself, newest first.
  const refused = await fetch(`${ready.base_url}/t/acme/mcp`, { method: "POST", headers: { Authorization: "Bearer tt_wrong" } });
  const fresher = refused.headers.get("telltale-reference") ?? "none";
  await page.locator(`tbody[data-reference="${fresher}"]`).waitFor({ timeout: 20_000 });
  await page.getByLabel("Failed only").check();
  expect(await page.locator("tbody[data-reference] .tone-bad").count()).toBe(await page.locator("tbody[data-reference]").count());
  await page.getByRole("link", { name: reference }).click();
  await verdict().locator("code").filter({ hasText: "globex-sre" }).waitFor();
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: ready.base_url });
  await page.getByRole("button", { name: "Copy the connector URL" }).click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(`${ready.base_url}/t/acme/mcp`);
});

it("shows who holds a token's session, and no attempts without the scope", async () => {
  await signIn("acme", "diagnose");
  const who = page.locator(".who");
  expect(await who.innerText()).toContain("operator token · read, diagnose");
  await page.getByRole("link", { name: "Connector" }).click();
  await page.getByText("are shown to administrators of acme").waitFor();
  expect(await page.getByRole("table").count()).toBe(0);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Operator token").waitFor();
});
