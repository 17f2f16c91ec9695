import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';

import { acme, authorize, base, basic, Browser, globex, part, Server } from './client.mjs';

test('both discoveries', async (t) => {
  const s = await Server.start(t);
  for (const path of ['/.well-known/openid-configuration', '/.well-known/oauth-authorization-server']) {
    const res = await s.get(path, { headers: { origin: 'https://client.example' } });
    const d = await res.json();
    assert.equal(d.issuer, s.issuer);
    assert.deepEqual(d.code_challenge_methods_supported, ['S256']);
    assert.equal(d.authorization_response_iss_parameter_supported, true);
    assert.equal(d.client_id_metadata_document_supported, true);
    assert.ok(d.scopes_supported.includes('telltale:diagnose') && d.scopes_supported.includes('offline_access'));
    for (const e of ['token', 'registration', 'introspection', 'revocation', 'authorization']) assert.ok(d[`${e}_endpoint`].startsWith(`${s.issuer}/`), e);
    assert.ok(res.headers.get('access-control-allow-origin'));
  }
  const named = await s.get(`http://localhost:${s.config.port}/.well-known/openid-configuration`);
  assert.equal((await named.json()).token_endpoint, `${s.issuer}/token`, 'the issuer names its endpoints, not the Host header');
});

test('acme: a JWT with audience, groups and iss; refresh tokens rotate', async (t) => {
  const s = await Server.start(t);
  const got = await authorize(s, { resource: acme, scope: 'openid telltale:read telltale:diagnose offline_access', params: { prompt: 'consent' } });
  assert.equal(got.status, 200);
  assert.equal(got.back.searchParams.get('iss'), s.issuer);
  assert.deepEqual({ ...part(got.access_token, 0), kid: 0 }, { alg: 'RS256', typ: 'at+jwt', kid: 0 });
  const claims = part(got.access_token, 1);
  assert.equal(claims.iss, s.issuer);
  assert.equal(claims.aud, acme);
  assert.equal(claims.sub, 'alice');
  assert.equal(claims.client_id, 'telltale-cli');
  assert.deepEqual(claims.groups, ['acme-sre']);
  assert.equal(claims.scope, 'telltale:read telltale:diagnose');
  assert.equal(claims.email, 'alice@telltale.example');
  assert.deepEqual(part(got.id_token, 1).groups, ['acme-sre']);
  assert.equal(part(got.id_token, 1).name, 'Alice Moreau');

  const refresh = (token) => s.post('/token', { grant_type: 'refresh_token', refresh_token: token, client_id: 'telltale-cli', resource: acme }).then((r) => r.json());
  const second = await refresh(got.refresh_token);
  assert.equal(part(second.access_token, 1).aud, acme);
  assert.notEqual(second.refresh_token, got.refresh_token);
  assert.equal((await refresh(got.refresh_token)).error, 'invalid_grant', 'a used refresh token is refused');
  assert.equal((await refresh(second.refresh_token)).error, 'invalid_grant', 'and ends its whole family');
});

test('every form of a tenant’s address is one resource', async (t) => {
  const s = await Server.start(t);
  for (const resource of [`${base}/t/acme`, `${base}/t/acme/api/v1`, `${acme}/`]) {
    assert.equal(part((await authorize(s, { resource })).access_token, 1).aud, acme, resource);
  }
  const { back } = await authorize(s, { resource: `${base}/t/initech/mcp` });
  assert.equal(back.searchParams.get('error'), 'invalid_target');
});

test('globex: opaque, introspected by the server alone, revoked', async (t) => {
  const s = await Server.start(t);
  const { access_token: token } = await authorize(s, { account: 'carol', resource: globex });
  assert.ok(!token.includes('.'));
  const seen = await s.introspect(token);
  assert.equal(seen.active, true);
  assert.deepEqual([seen.sub, seen.aud, seen.iss, seen.client_id, seen.scope, seen.name], ['carol', globex, s.issuer, 'telltale-cli', 'telltale:read', 'Carol Okafor']);
  assert.deepEqual(seen.groups, ['globex-sre']);
  const other = await s.post('/token/introspection', { token }, basic('telltale-robot', 'robot secret'));
  assert.deepEqual(await other.json(), { active: false }, 'another client learns nothing');
  assert.equal((await s.post('/token/introspection', { token }, basic('telltale-server', 'wrong'))).status, 401);
  assert.equal((await s.post('/token/revocation', { token, client_id: 'telltale-cli' })).status, 200);
  assert.deepEqual(await s.introspect(token), { active: false });
});

test('the configuration swaps the forms', async (t) => {
  const s = await Server.start(t, { formats: { acme: 'opaque', globex: 'jwt' } });
  assert.ok(!(await authorize(s, { resource: acme })).access_token.includes('.'));
  assert.equal(part((await authorize(s, { resource: globex })).access_token, 1).aud, globex);
});

test('without a resource: the granted one, else nothing of Telltale', async (t) => {
  const s = await Server.start(t);
  assert.equal(part((await authorize(s, { resource: acme, tokenResource: undefined })).access_token, 1).aud, acme);
  const none = await authorize(s, { scope: 'openid telltale:read' });
  const seen = await s.introspect(none.access_token);
  assert.deepEqual([seen.aud, seen.scope], [undefined, 'openid']);
  assert.match(none.pages[1].text, /its token opens nothing in Telltale/);
});

test('PKCE is required, S256 only', async (t) => {
  const s = await Server.start(t);
  const q = { client_id: 'telltale-cli', redirect_uri: 'http://127.0.0.1:5/callback', response_type: 'code', scope: 'telltale:read', resource: acme };
  for (const extra of [{}, { code_challenge: 'x'.repeat(43), code_challenge_method: 'plain' }]) {
    const { back } = await new Browser(s).press(`/auth?${new URLSearchParams({ ...q, ...extra })}`);
    assert.equal(back.searchParams.get('error'), 'invalid_request');
    assert.equal(back.searchParams.get('iss'), s.issuer);
  }
});

test('a registration’s scope is ignored, its odd grants are dropped', async (t) => {
  const s = await Server.start(t);
  const made = await s.register({
    client_name: 'tester', redirect_uris: ['http://127.0.0.1:3334/oauth/callback'], token_endpoint_auth_method: 'none', scope: 'openid',
    grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'], response_types: ['code'],
  });
  assert.equal(made.status, 201);
  assert.equal(made.scope, undefined);
  assert.deepEqual(made.grant_types, ['authorization_code', 'refresh_token']);
  const got = await authorize(s, { client: made.client_id, redirect: 'http://127.0.0.1:4444/oauth/callback', resource: acme, scope: 'telltale:read telltale:act' });
  assert.equal(got.scope, 'telltale:read telltale:act');
  assert.ok(got.refresh_token);
  assert.match(got.pages[1].text, /This client named itself/);
  assert.equal((await s.register({ redirect_uris: ['cursor://anysphere.cursor-retrieval/oauth/callback'], token_endpoint_auth_method: 'none' })).status, 201);
  assert.equal((await s.register({ redirect_uris: ['http://evil.example/cb'], application_type: 'native' })).error, 'invalid_redirect_uri');
  assert.equal((await s.register([])).error, 'invalid_request');
});

test('a client id metadata document on loopback', async (t) => {
  const s = await Server.start(t);
  const documents = {};
  const site = createServer((req, res) => res.setHeader('content-type', 'application/json').end(JSON.stringify(documents[req.url] ?? {})));
  await new Promise((done) => { site.listen(0, '127.0.0.1', done); });
  t.after(() => site.close());
  const id = `http://127.0.0.1:${site.address().port}/client.json`;
  documents['/client.json'] = { client_id: id, client_name: 'a document', redirect_uris: ['http://127.0.0.1/cb'], grant_types: ['authorization_code'], scope: 'openid' };
  const got = await authorize(s, { client: id, redirect: 'http://127.0.0.1:7777/cb', resource: acme });
  assert.equal(part(got.access_token, 1).client_id, id);
  assert.equal(got.refresh_token, undefined, 'it did not ask for the grant');
  documents['/other.json'] = documents['/client.json'];
  for (const bad of [id.replace('client', 'other'), 'http://192.0.2.1/client.json', 'https://127.0.0.1:1/client.json']) {
    const { pages } = await authorize(s, { client: bad, redirect: 'http://127.0.0.1:7777/cb', resource: acme });
    assert.match(pages[0].text, /invalid_client/, bad);
  }
});

test('the robot’s tokens, and nobody else by client credentials', async (t) => {
  const s = await Server.start(t);
  const ask = (id, secret, resource) => s.post('/token', { grant_type: 'client_credentials', scope: 'telltale:read', resource }, basic(id, secret)).then((r) => r.json());
  const jwt = part((await ask('telltale-robot', 'robot secret', acme)).access_token, 1);
  assert.deepEqual([jwt.sub, jwt.client_id, jwt.groups], ['telltale-robot', 'telltale-robot', ['acme-viewers', 'globex-viewers']]);
  const seen = await s.introspect((await ask('telltale-robot', 'robot secret', globex)).access_token);
  assert.deepEqual([seen.active, seen.sub, seen.aud], [true, 'telltale-robot', globex]);
  assert.equal((await ask('telltale-server', 'server secret', acme)).error, 'invalid_request', 'the server only introspects');
});

test('the pages: a password works, a wrong one does not, and one may decline', async (t) => {
  const s = await Server.start(t);
  const q = new URLSearchParams({ client_id: 'telltale-cli', redirect_uri: 'http://127.0.0.1:5/callback', response_type: 'code', scope: 'telltale:read', resource: acme, code_challenge: 'x'.repeat(43), code_challenge_method: 'S256' });
  const browser = new Browser(s);
  const wrong = await browser.press(`/auth?${q}`, { name: 'bob', password: 'alice' });
  assert.equal(wrong.pages[1].status, 400);
  assert.match(wrong.pages[1].text, /No such account/);
  const page = wrong.pages[0];
  assert.ok(!/<script|style="|onclick/i.test(page.text));
  assert.equal(page.headers.get('content-security-policy'), "default-src 'none'; style-src 'self'; form-action 'self' http://127.0.0.1:5; base-uri 'none'; frame-ancestors 'none'");
  assert.equal(page.headers.get('cache-control'), 'no-store');
  const { back, pages } = await browser.press(`/auth?${q}`, { name: 'bob', password: 'bob' }, { decision: 'deny' });
  assert.equal(back.searchParams.get('error'), 'access_denied');
  for (const want of ['bob', acme, 'telltale:read', 'telltale, the command line']) assert.ok(pages[1].text.includes(want), want);
  // The next sign-in asks again, and another account may answer.
  assert.equal(part((await authorize(s, { browser, resource: acme, account: 'dana' })).access_token, 1).sub, 'dana');
  assert.equal(part((await authorize(s, { browser, resource: acme, account: 'erin' })).access_token, 1).sub, 'erin');
  const injected = await s.register({ client_name: '<img src=x>', redirect_uris: ['http://127.0.0.1/cb'], token_endpoint_auth_method: 'none' });
  const { pages: escaped } = await authorize(s, { client: injected.client_id, redirect: 'http://127.0.0.1/cb', resource: acme });
  assert.ok(escaped[0].text.includes('&lt;img') && !escaped[0].text.includes('<img'));
});

test('browser clients: CORS on registration and tokens', async (t) => {
  const s = await Server.start(t);
  const origin = 'https://inspector.example';
  for (const path of ['/reg', '/token']) {
    const res = await s.get(path, { method: 'OPTIONS', headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'content-type' } });
    assert.equal(res.status, 204, path);
    assert.ok(['*', origin].includes(res.headers.get('access-control-allow-origin')), path);
    assert.match(res.headers.get('access-control-allow-headers'), /content-type/i, path);
  }
  const res = await s.post('/token', { grant_type: 'authorization_code', code: 'x', client_id: 'telltale-cli', redirect_uri: 'x', code_verifier: 'x'.repeat(43) }, { origin });
  assert.equal(res.headers.get('access-control-allow-origin'), origin);
  assert.equal((await res.json()).error, 'invalid_grant');
});

test('a restart keeps keys, registrations and tokens; SIGHUP adds a key', async (t) => {
  const s = await Server.start(t);
  const client = await s.register({ redirect_uris: ['http://127.0.0.1/cb'], token_endpoint_auth_method: 'none', grant_types: ['authorization_code', 'refresh_token'] });
  const got = await authorize(s, { client: client.client_id, redirect: 'http://127.0.0.1:9/cb', resource: globex, account: 'dana' });
  const kids = async () => (await (await s.get('/jwks')).json()).keys.map((k) => k.kid);
  const [first] = await kids();
  assert.equal(await s.stop(), 0);
  for (const f of readdirSync(s.config.data_dir)) assert.equal(statSync(join(s.config.data_dir, f)).mode & 0o777, 0o600, f);
  const issuer = s.issuer;
  await s.run();
  assert.equal(s.issuer, issuer);
  assert.equal((await s.introspect(got.access_token)).active, true);
  const again = await s.post('/token', { grant_type: 'refresh_token', refresh_token: got.refresh_token, client_id: client.client_id });
  assert.equal(again.status, 200);
  assert.deepEqual(await kids(), [first]);

  const fresh = await s.rotate();
  assert.deepEqual(await kids(), [fresh, first]);
  const token = (await authorize(s, { resource: acme })).access_token;
  assert.equal(part(token, 0).kid, fresh);
  assert.equal(part((await authorize(s, { resource: acme, scope: 'openid' })).id_token, 0).kid, fresh);
});

test('it ends with its parent', async (t) => {
  const s = await Server.start(t);
  await s.stop();
  const file = join(s.dir, 'config.json');
  const shell = spawn('sh', ['-c', '"$0" "$1" --config "$2" & echo child $!; wait', process.execPath, new URL('../server.mjs', import.meta.url).pathname, file], { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines = createInterface({ input: shell.stdout })[Symbol.asyncIterator]();
  const child = Number((await lines.next()).value.split(' ')[1]);
  assert.match((await lines.next()).value, /^ready /);
  shell.kill('SIGKILL');
  // Its end closes the pipe that it shares with the shell.
  const over = AbortSignal.timeout(10_000);
  over.addEventListener('abort', () => process.kill(child, 'SIGKILL'));
  assert.equal((await lines.next()).done, true);
  assert.ok(!over.aborted);
});

test('it refuses a listener that others can reach', async (t) => {
  await assert.rejects(Server.start(t, { host: '0.0.0.0', quiet: true }), /ended/);
});
