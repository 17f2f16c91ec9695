// The configuration file, JSON, written by `telltaled dev`:
//   base_url          origin of Telltale, whose /t/{tenant}/mcp are the resources
//   host, port        where to listen: a loopback address; port 0 takes a free one
//   data_dir          keys, registrations, grants and tokens, kept over restarts
//   server_secret     of the client telltale-server, which may introspect
//   robot_secret      of the client telltale-robot; without one there is no robot
//   robot_groups      claim `groups` of the robot's tokens; default: the viewers
//   formats           {"acme": "jwt", "globex": "opaque"}: form of the access tokens
//   access_token_ttl  seconds; default 3600
import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';

export const tenants = ['acme', 'globex'];

export function readConfig(file) {
  const raw = JSON.parse(readFileSync(file, 'utf8'));
  const need = (name) => {
    if (typeof raw[name] !== 'string' || raw[name] === '') throw new Error(`${file}: ${name} is missing`);
    return raw[name];
  };
  const host = raw.host ?? '127.0.0.1';
  if (!loopback(host)) throw new Error(`${file}: host ${host} can be reached from outside; this provider is for one machine`);
  const formats = { acme: 'jwt', globex: 'opaque', ...raw.formats };
  for (const [slug, format] of Object.entries(formats)) {
    if (!tenants.includes(slug) || !['jwt', 'opaque'].includes(format)) throw new Error(`${file}: formats: ${slug}: ${format}`);
  }
  return {
    host,
    port: raw.port ?? 0,
    baseURL: need('base_url').replace(/\/+$/, ''),
    dataDir: need('data_dir'),
    serverSecret: need('server_secret'),
    robotSecret: raw.robot_secret,
    robotGroups: raw.robot_groups ?? tenants.map((slug) => `${slug}-viewers`),
    formats,
    accessTokenTTL: raw.access_token_ttl ?? 3600,
  };
}

// loopback reports whether a host name or address is this machine alone.
export function loopback(host) {
  const bare = host.replace(/^\[|\]$/g, '');
  if (bare === 'localhost' || bare === '::1') return true;
  return isIP(bare) === 4 && bare.startsWith('127.');
}
