// The resource servers (RFC 8707): each tenant's MCP endpoint. A token request
// without `resource` gets a token for the resource that was authorized; where
// none was ever named, one that opens nothing but /me here.
import { errors } from 'oidc-provider';

import { tenants } from './config.mjs';

export const scopes = {
  'telltale:read': 'look at nodes, metrics and events, redacted',
  'telltale:payloads': 'see unredacted bodies where a node allows it',
  'telltale:diagnose': 'start and cancel traces and queries on nodes',
  'telltale:act': 'run, cancel and pause jobs',
  'telltale:approve': 'decide what waits for an approval',
  'telltale:maintain': 'maintain nodes',
  'telltale:admin': 'administer the tenant: tokens, members, issuers',
};

// tenantOf names the tenant whose resource this is; undefined: of none.
export function tenantOf(config, resource) {
  return tenants.find((slug) => {
    const base = `${config.baseURL}/t/${slug}`;
    return [base, `${base}/mcp`, `${base}/mcp/`, `${base}/api/v1`].includes(resource);
  });
}

// resourceIndicators is the library's feature of that name.
export function resourceIndicators(config) {
  return {
    enabled: true,
    defaultResource: (_ctx, _client, oneOf) => oneOf,
    useGrantedResource: () => true,
    getResourceServerInfo(_ctx, resource) {
      const slug = tenantOf(config, resource);
      if (!slug) throw new errors.InvalidTarget(`unknown resource: want ${tenants.map((s) => `${config.baseURL}/t/${s}/mcp`).join(' or ')}`);
      return {
        audience: `${config.baseURL}/t/${slug}/mcp`,
        scope: Object.keys(scopes).join(' '),
        accessTokenTTL: config.accessTokenTTL,
        accessTokenFormat: config.formats[slug],
        jwt: { sign: { alg: 'RS256' } },
      };
    },
  };
}
