// What the tests use: a provider process of their own, and a client that walks
// the authorization code flow as a browser would, pressing the forms' buttons.
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

export const base = 'http://127.0.0.1:8400';
export const acme = `${base}/t/acme/mcp`;
export const globex = `${base}/t/globex/mcp`;
const deadline = 15_000;

export class Server {
  static async start(t, { quiet, ...options } = {}) {
    const s = new Server();
    s.stderr = quiet ? 'ignore' : 'inherit';
    s.dir = mkdtempSync(join(tmpdir(), 'devidp-'));
    s.config = { base_url: base, data_dir: join(s.dir, 'data'), server_secret: 'server secret', robot_secret: 'robot secret', port: 0, ...options };
    t.after(async () => {
      await s.stop();
      rmSync(s.dir, { recursive: true });
    });
    await s.run();
    return s;
  }

  async run() {
    const file = join(this.dir, 'config.json');
    writeFileSync(file, JSON.stringify(this.config), { mode: 0o600 });
    this.child = spawn(process.execPath, [new URL('../server.mjs', import.meta.url).pathname, '--config', file], { stdio: ['ignore', 'pipe', this.stderr] });
    this.lines = createInterface({ input: this.child.stdout });
    this.issuer = await this.line('ready');
    this.config.port = Number(new URL(this.issuer).port);
  }

  async line(word) {
    const over = AbortSignal.timeout(deadline);
    const [line] = await Promise.race([
      once(this.lines, 'line', { signal: over }),
      once(this.child, 'exit', { signal: over }).then(() => { throw new Error('the provider ended'); }),
    ]);
    const [got, rest] = line.split(' ');
    if (got !== word) throw new Error(`want ${word}, got ${line}`);
    return rest;
  }

  async rotate() {
    this.child.kill('SIGHUP');
    return this.line('rotated');
  }

  async stop(signal = 'SIGTERM') {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return this.child.exitCode;
    const ended = once(this.child, 'exit', { signal: AbortSignal.timeout(deadline) });
    this.child.kill(signal);
    const [code] = await ended;
    return code;
  }

  get(path, options = {}) {
    return fetch(new URL(path, this.issuer), { redirect: 'manual', signal: AbortSignal.timeout(deadline), ...options });
  }

  post(path, form, headers = {}) {
    return this.get(path, { method: 'POST', body: new URLSearchParams(form), headers });
  }

  async register(metadata) {
    const res = await this.get('/reg', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(metadata) });
    return { status: res.status, ...(await res.json()) };
  }

  introspect(token) {
    return this.post('/token/introspection', { token }, basic('telltale-server', 'server secret')).then((r) => r.json());
  }
}

export const basic = (id, secret) => ({ authorization: `Basic ${Buffer.from(`${encodeURIComponent(id)}:${encodeURIComponent(secret)}`).toString('base64')}` });

export const part = (jwt, i) => JSON.parse(Buffer.from(jwt.split('.')[i], 'base64url'));

// Browser keeps cookies, by path.
export class Browser {
  constructor(server) {
    this.server = server;
    this.jar = new Map();
  }

  async go(url, form) {
    const u = new URL(url, this.server.issuer);
    const cookie = [...this.jar.values()].filter((c) => u.pathname.startsWith(c.path)).map((c) => c.pair).join('; ');
    const res = await this.server.get(u, { headers: { cookie, accept: 'text/html' }, ...(form && { method: 'POST', body: new URLSearchParams(form) }) });
    for (const line of res.headers.getSetCookie()) {
      const [pair, ...attributes] = line.split('; ');
      const path = attributes.find((a) => a.toLowerCase().startsWith('path='))?.slice(5) ?? '/';
      this.jar.set(`${pair.split('=')[0]} ${path}`, { pair, path });
    }
    return res;
  }

  // press answers one page after the other until the client's redirect.
  async press(url, ...forms) {
    const pages = [];
    let res = await this.go(url);
    for (let hops = 0; hops < 20; hops += 1) {
      const to = res.headers.get('location');
      if (to && !new URL(to, this.server.issuer).href.startsWith(this.server.issuer)) return { back: new URL(to), pages };
      if (to) {
        url = to;
        res = await this.go(to);
        continue;
      }
      pages.push({ status: res.status, headers: res.headers, text: await res.text() });
      if (forms.length === 0) return { pages };
      res = await this.go(url, forms.shift());
    }
    throw new Error('it never ends');
  }
}

// authorize signs in and returns the token response, or the error redirect.
export async function authorize(server, { client = 'telltale-cli', redirect = 'http://127.0.0.1:31337/callback', account = 'alice', scope = 'telltale:read', resource, browser = new Browser(server), decision = 'allow', tokenResource = resource, params = {} } = {}) {
  const verifier = randomBytes(32).toString('base64url');
  const state = randomBytes(8).toString('hex');
  const query = new URLSearchParams({
    client_id: client, redirect_uri: redirect, response_type: 'code', scope, state,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'), code_challenge_method: 'S256', ...params,
  });
  if (resource) query.set('resource', resource);
  const { back, pages } = await browser.press(`/auth?${query}`, { account }, { decision });
  if (!back?.searchParams.has('code')) return { back, pages };
  if (back.searchParams.get('state') !== state) throw new Error('state');
  const form = { grant_type: 'authorization_code', code: back.searchParams.get('code'), client_id: client, redirect_uri: redirect, code_verifier: verifier };
  if (tokenResource) form.resource = tokenResource;
  const res = await server.post('/token', form);
  return { back, pages, status: res.status, ...(await res.json()) };
}
