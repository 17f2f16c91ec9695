// A fresh page for every test, which must stay free of errors.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, BrowserContext, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject } from "vitest";
import { startBrowser, type Tenant } from "./stack";

export const ready = inject("ready");
export let context: BrowserContext;
export let page: Page;

let browser: Browser;
let trouble: string[];

beforeAll(async () => {
  browser = await startBrowser();
});
afterAll(async () => {
  await browser?.close();
});
beforeEach(async () => {
  trouble = [];
  await fresh();
});
afterEach(async () => {
  await context.close();
  expect(trouble, "errors in the page, a violated content security policy among them").toEqual([]);
});

/** Another browser profile: no cookie, nothing remembered. */
export async function fresh(): Promise<void> {
  await context?.close();
  context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  page = await context.newPage();
  page.on("pageerror", (e) => trouble.push(e.message));
  page.on("console", (m) => {
    // The browser itself reports each refused request; those are looked at below.
    if (m.type() === "error" && !m.text().startsWith("Failed to load resource")) trouble.push(m.text());
  });
}

const shots = process.env.SCREENSHOTS;
export async function shoot(name: string): Promise<void> {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true });
}

export function tenant(slug: string): Tenant {
  const t = ready.tenants.find((x) => x.slug === slug);
  if (!t) throw new Error(`no tenant ${slug}`);
  return t;
}

/** Signs in with an operator token. */
export async function signIn(slug: string, kind = "read"): Promise<void> {
  await page.goto(ready.dashboard_url);
  await page.getByLabel("Tenant").fill(slug);
  await page.getByLabel("Operator token").fill(tenant(slug).operator_tokens[kind] ?? "");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Fleet" }).waitFor();
}

/** Signs in as a demo account: from the chooser's button through the provider's pages. */
export async function signInAs(account: string): Promise<void> {
  await page.getByRole("link", { name: /^Sign in with / }).click();
  await page.waitForURL(`${ready.issuer}/**`);
  await page.locator(`button[name="account"][value="${account}"]`).click();
  const allow = page.getByRole("button", { name: "Allow" });
  await Promise.race([allow.click(), page.waitForURL(`${ready.base_url}/**`)]);
  await page.waitForURL(`${ready.base_url}/**`);
}

export async function rest<T>(slug: string, path: string): Promise<T> {
  const t = tenant(slug);
  const r = await fetch(`${t.rest_url}/${path}`, { headers: { Authorization: `Bearer ${t.operator_tokens.read}` } });
  expect(r.status).toBe(200);
  return (await r.json()) as T;
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function accessible(): Promise<void> {
  // Run outside the page's own world: its policy allows no foreign script.
  const found = await page.evaluate(`${axe}; axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target.join(" ")).join(", ")))`);
  expect(found).toEqual([]);
}

const fits = async (width: number) => expect(await page.evaluate(() => document.documentElement.scrollWidth), "nothing wider than the screen").toBeLessThanOrEqual(width);

export async function phone(name: string): Promise<void> {
  await shoot(name);
  await accessible();
  await fits(390);
}

/** The page at both widths in both themes, within the screen, and accessible: a theme changes nothing on a phone that it does not change elsewhere. */
export async function everyWay(name: string): Promise<void> {
  for (const width of [1280, 390]) {
    await page.setViewportSize({ width, height: 900 });
    for (const theme of ["light", "dark"]) {
      await page.getByLabel("Theme").selectOption(theme);
      await shoot(`${name}-${width}-${theme}`);
      if (width > 390 || theme === "dark") await accessible();
      await fits(width);
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.getByLabel("Theme").selectOption("light");
}
