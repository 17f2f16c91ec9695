// The clients that are known beforehand, and how others become known: dynamic
// registration (RFC 7591) and client id metadata documents.
import { errors } from 'oidc-provider';

import { loopback, tenants } from './config.mjs';

const code = { grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none' };
const machine = { redirect_uris: [], response_types: [], token_endpoint_auth_method: 'client_secret_basic' };

export function staticClients(config) {
  const list = [
    {
      ...code,
      client_id: 'telltale-dashboard',
      client_name: 'Telltale dashboard',
      application_type: 'web',
      redirect_uris: tenants.map((slug) => `${config.baseURL}/t/${slug}/api/v1/session/callback`),
    },
    {
      ...code,
      client_id: 'telltale-cli',
      client_name: 'telltale, the command line',
      application_type: 'native', // any port of a loopback redirect
      redirect_uris: ['127.0.0.1', 'localhost', '[::1]'].flatMap((host) => [`http://${host}/callback`, `http://${host}/`]),
    },
    { ...machine, client_id: 'telltale-server', client_name: 'Telltale server', client_secret: config.serverSecret, grant_types: [] },
  ];
  if (config.robotSecret) {
    list.push({ ...machine, client_id: 'telltale-robot', client_name: 'Telltale robot', client_secret: config.robotSecret, grant_types: ['client_credentials'] });
  }
  return list;
}

// known clients need no warning on the consent page.
export const isStatic = (id) => ['telltale-dashboard', 'telltale-cli', 'telltale-server', 'telltale-robot'].includes(id);

// shape makes a registration what this provider can serve, as RFC 7591 allows
// it to: `scope` is ignored, so that the client may later ask for any; grants
// that are not offered are dropped; a client with a loopback or private-scheme
// redirect that does not say what it is, is a native one.
export function shape(metadata) {
  const { scope: _ignored, ...client } = metadata;
  for (const [field, offered] of [['grant_types', code.grant_types], ['response_types', code.response_types]]) {
    if (Array.isArray(client[field])) client[field] = client[field].filter((v) => offered.includes(v));
  }
  if (client.application_type === undefined && Array.isArray(client.redirect_uris) && native(client.redirect_uris)) {
    client.application_type = 'native';
  }
  return client;
}

function native(uris) {
  const urls = uris.map((u) => URL.parse(u)).filter(Boolean);
  const plain = urls.filter((u) => u.protocol === 'http:');
  const private_ = urls.filter((u) => !['http:', 'https:'].includes(u.protocol));
  return plain.length + private_.length > 0 && plain.every((u) => loopback(u.hostname));
}

// The library fetches metadata documents over https, never from a private
// address. This adds plain http on loopback, for trying a client out here.
const limits = { bytes: 5 * 1024, milliseconds: 2500, cached: 30_000, entries: 100 };

export class LoopbackDocuments {
  #cache = new Map(); // client id → {client, until}

  // find returns undefined for whatever is no such client id.
  async find(id) {
    const url = URL.parse(id);
    if (url?.protocol !== 'http:' || !loopback(url.hostname) || url.hash || url.username || url.pathname === '/') return undefined;
    const hit = this.#cache.get(id);
    if (hit?.until > Date.now()) return hit.client;
    const client = await this.#fetch(id);
    this.#cache.delete(id);
    this.#cache.set(id, { client, until: Date.now() + limits.cached });
    if (this.#cache.size > limits.entries) this.#cache.delete(this.#cache.keys().next().value);
    return client;
  }

  async #fetch(id) {
    const bad = (why) => new errors.InvalidClient('client_id metadata document fetch failed', why);
    let metadata;
    try {
      const response = await fetch(id, { redirect: 'manual', headers: { accept: 'application/json' }, signal: AbortSignal.timeout(limits.milliseconds) });
      if (response.status !== 200) throw new Error(`status ${response.status}`);
      let text = '';
      for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
        text += chunk;
        if (text.length > limits.bytes) throw new Error(`more than ${limits.bytes} bytes`);
      }
      metadata = JSON.parse(text);
    } catch (err) {
      throw bad(err.message);
    }
    if (metadata?.client_id !== id) throw bad('its client_id is not its own address');
    if ('client_secret' in metadata || (metadata.token_endpoint_auth_method ?? 'none').startsWith('client_secret')) throw bad('it must not use a shared secret');
    return shape({ token_endpoint_auth_method: 'none', ...metadata });
  }
}
