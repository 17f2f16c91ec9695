import { expect, it } from "vitest";
import { accessible, context, page, phone, ready, rest, shoot, signIn, tenant } from "./page";

interface NodePage {
  nodes: { node: string; name: string }[];
}
interface Query {
  step_s: number;
  series: { metric: string; labels: Record<string, string>; start: string; points: (number | null)[] }[];
}

it("signs in, shows the node, and charts what REST answers", async () => {
  await page.goto(ready.dashboard_url);
  await shoot("sign-in");
  await accessible();
  await signIn("acme");
  const { nodes } = await rest<NodePage>("acme", "nodes");
  const node = nodes[0];
  if (!node) throw new Error("acme has no node");
  const link = page.getByRole("region", { name: "Table of nodes" }).getByRole("link", { name: node.name, exact: true });
  await link.waitFor();
  await shoot("fleet");
  await accessible();
  await link.click();
  await page.getByRole("heading", { name: node.name, level: 1 }).waitFor();

  for (const module of ["network", "storage", "process"]) await page.getByRole("region", { name: module, exact: true }).locator(".uplot canvas").first().waitFor({ timeout: 60_000 });
  // A chart of the real machine appears and moves on by itself.
  const row = page.locator('tr[data-series="forks"]');
  await row.waitFor({ timeout: 60_000 });
  const first = await row.getAttribute("data-time");
  expect(Number(first)).toBeGreaterThan(0);
  await page.waitForFunction((old) => document.querySelector('tr[data-series="forks"]')?.getAttribute("data-time") !== old, first, { timeout: 60_000 });

  // Its newest point is what REST answers for that time.
  const [time, value] = await Promise.all([row.getAttribute("data-time"), row.getAttribute("data-value")]);
  const q = await rest<Query>("acme", `metrics/query?metrics=process.forks&node=${node.node}&from=-15m`);
  const s = q.series[0];
  if (!s) throw new Error("REST has no series process.forks");
  const index = Math.round((Number(time) - Date.parse(s.start) / 1000) / q.step_s) - 1;
  expect(Number(value)).toBe(s.points[index]);

  await page.locator(".uplot canvas").first().waitFor();
  // Two points are enough to see something: colour, among greys.
  const figure = page.getByRole("figure").filter({ has: row });
  const coloured = await figure.locator("canvas").evaluate((canvas: HTMLCanvasElement) => {
    const { data } = canvas.getContext("2d")?.getImageData(0, 0, canvas.width, canvas.height) ?? { data: [] };
    let n = 0;
    for (let i = 0; i < data.length; i += 4) if (Math.max(...data.slice(i, i + 3)) - Math.min(...data.slice(i, i + 3)) > 60) n++;
    return n;
  });
  expect(coloured).toBeGreaterThan(20);
  await page.getByText("no earlier data in this span").first().waitFor();
  await page.locator('[data-metric="process.runq_wait_ns"]').getByText("run-queue wait").waitFor();
  await page.getByText(/^\d+ of \d+ signals full/).waitFor();
  await shoot("node");
  await accessible();
  await page.getByLabel("Theme").selectOption("dark");
  await shoot("node-dark");
  await accessible();

  // Everything fits a phone, in both themes.
  await page.setViewportSize({ width: 390, height: 844 });
  await phone("node-390-dark");
  await page.getByLabel("Theme").selectOption("light");
  await phone("node-390");
  await page.getByRole("link", { name: "Fleet" }).click();
  await link.waitFor();
  await phone("fleet-390");
  await page.getByLabel("Theme").selectOption("dark");
  await phone("fleet-390-dark");
});

it("keeps every credential out of a script's reach", async () => {
  await signIn("acme");
  const secret = tenant("acme").operator_tokens.read ?? "";
  const seen = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }, document.documentElement.outerHTML]));
  expect(seen).not.toContain(secret);
  const cookies = await context.cookies();
  expect(cookies.length).toBeGreaterThan(0);
  for (const c of cookies) {
    expect(c.httpOnly).toBe(true);
    expect(c.sameSite).toBe("Lax");
    expect(seen).not.toContain(c.value);
  }
});

it("shows a tenant its own nodes only", async () => {
  await signIn("globex");
  const [own, foreign] = await Promise.all([rest<NodePage>("globex", "nodes"), rest<NodePage>("acme", "nodes")]);
  const table = page.getByRole("region", { name: "Table of nodes" });
  await table.getByRole("link", { name: own.nodes[0]?.name ?? "?", exact: true }).waitFor();
  const text = await page.locator("body").innerText();
  for (const n of foreign.nodes) expect(text).not.toContain(n.name);
  await page.goto(`${ready.base_url}/t/globex/ui/nodes/${foreign.nodes[0]?.node}`);
  await page.getByRole("alert").waitFor();
  // Another tenant's pages ask for a sign-in there.
  await page.goto(`${ready.base_url}/t/acme/ui`);
  await page.getByRole("heading", { name: "Telltale" }).waitFor();
});

it("says what is wrong with a token, and ends a session on sign-out", async () => {
  await page.goto(ready.dashboard_url);
  await page.getByLabel("Tenant").fill("acme");
  await page.getByLabel("Operator token").fill("tt_wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("reference").waitFor();
  await page.getByRole("alert").getByText("Check the tenant's name").waitFor();
  await shoot("sign-in-refused");
  await signIn("acme");
  await page.keyboard.press("/");
  const search = page.getByRole("searchbox");
  expect(await search.evaluate((e) => e === document.activeElement)).toBe(true);
  await page.keyboard.type("no-such-node");
  await page.getByText("No node matches").waitFor();
  await page.keyboard.press("Escape");
  expect(await search.inputValue()).toBe("");
  // The next stops are the table, and in it the first node.
  await page.getByRole("region", { name: "Table of nodes" }).waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  expect(await page.evaluate(() => document.activeElement?.closest("tbody th")?.getAttribute("scope"))).toBe("row");
  const stale = await context.cookies();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Operator token").waitFor();
  // The old cookie is worth nothing any more, even when replayed.
  const header = stale.map((c) => `${c.name}=${c.value}`).join("; ");
  const r = await fetch(`${tenant("acme").rest_url}/session`, { headers: { Cookie: header } });
  expect(r.status).toBe(401);
});
