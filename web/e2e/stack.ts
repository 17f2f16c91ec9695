// Starts the built server with everything it needs, and a real browser.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type Browser, chromium } from "playwright-core";

export interface Tenant {
  slug: string;
  rest_url: string;
  operator_tokens: Record<string, string>;
}
export interface Ready {
  issuer: string;
  base_url: string;
  dashboard_url: string;
  tenants: Tenant[];
}

export interface Stack {
  ready: Ready;
  stop(): Promise<void>;
}

/** The folder of the built programs; BIN names another. */
const bin = resolve(process.env.BIN ?? join(import.meta.dirname, "../../bin"));

async function freePort(): Promise<number> {
  // Below the ephemeral range, so that no outgoing connection takes it.
  for (let port = 21_000; port < 22_000; port++) {
    const server = createServer();
    const free = await new Promise<boolean>((done) => {
      server.once("error", () => done(false));
      server.listen(port, "127.0.0.1", () => server.close(() => done(true)));
    });
    if (free) return port;
  }
  throw new Error("no free port");
}

export async function startStack(): Promise<Stack> {
  const dir = await mkdtemp(join(tmpdir(), "telltale-e2e-"));
  await chmod(dir, 0o755);
  const file = join(dir, "ready.json");
  const output: string[] = [];
  const child: ChildProcess = spawn(join(bin, "telltaled"), ["dev", "--data-dir", join(dir, "data"), "--http", `127.0.0.1:${await freePort()}`, "--grpc", "127.0.0.1:0", "--ready-file", file, "--idp-dir", join(import.meta.dirname, "../../deploy/devidp")], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  child.stdout?.on("data", (d: Buffer) => output.push(d.toString()));
  child.stderr?.on("data", (d: Buffer) => output.push(d.toString()));
  const deadline = Date.now() + 120_000;
  let ready: Ready | undefined;
  while (!ready) {
    if (child.exitCode !== null || Date.now() > deadline) throw new Error(`the server did not come up:\n${output.join("").slice(-4000)}`);
    ready = await readFile(file, "utf8").then(
      (text) => JSON.parse(text) as Ready,
      () => undefined,
    );
    if (!ready) await new Promise((r) => setTimeout(r, 100));
  }
  const up = ready;
  return {
    ready: up,
    async stop() {
      if (child.exitCode === null) {
        const gone = once(child, "exit");
        child.kill("SIGINT");
        await gone;
      }
      await rm(dir, { recursive: true, force: true });
    },
  };
}

export function startBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}
