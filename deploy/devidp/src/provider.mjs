// Puts the library's provider together.
import Provider, { interactionPolicy } from 'oidc-provider';

import { claimsOf, findAccount } from './accounts.mjs';
import { read } from './body.mjs';
import { LoopbackDocuments, shape, staticClients } from './clients.mjs';
import { loopback } from './config.mjs';
import { interactions } from './interactions.mjs';
import { errorPage } from './pages.mjs';
import { resourceIndicators, scopes } from './resources.mjs';

const hour = 3600;
const fortnight = 14 * 24 * hour;

export function makeProvider(config, store, keys) {
  const documents = new LoopbackDocuments();
  const adapter = (kind) => {
    const rows = store.adapter(kind);
    return kind === 'Client' ? { ...rows, find: async (id) => (await rows.find(id)) ?? documents.find(id) } : rows;
  };
  const port = new URL(config.issuer).port; // cookies of one host are shared by all its ports
  const provider = new Provider(config.issuer, {
    adapter,
    findAccount,
    clients: staticClients(config),
    jwks: { keys: keys.signing },
    cookies: {
      keys: keys.cookies,
      names: { session: `devidp_${port}`, interaction: `devidp_${port}_interaction`, resume: `devidp_${port}_resume` },
    },
    scopes: ['openid', 'profile', 'email', 'offline_access'],
    claims: { openid: ['sub', 'name', 'email', 'groups'], profile: ['name'], email: ['email'] },
    conformIdTokenClaims: false, // the ID token itself holds them, too
    extraTokenClaims: (_ctx, token) => {
      if (token.accountId) return claimsOf(token.accountId);
      return { sub: token.clientId, groups: config.robotGroups };
    },
    responseTypes: ['code'],
    pkce: { required: () => true },
    // Whoever registered the grant gets a refresh token, offline_access or not.
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    // Several accounts take turns in one browser: a token outlives its session.
    expiresWithSession: () => false,
    // Browser-based clients: these endpoints take no cookie, so any origin may ask.
    clientBasedCORS: () => true,
    features: {
      devInteractions: { enabled: false },
      dPoP: { enabled: false },
      pushedAuthorizationRequests: { enabled: false },
      rpInitiatedLogout: { enabled: false },
      resourceIndicators: resourceIndicators(config),
      clientCredentials: { enabled: true },
      registration: { enabled: true },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      introspection: {
        enabled: true,
        allowedPolicy: (_ctx, client, token) => client.clientId === 'telltale-server' || token.clientId === client.clientId,
      },
      revocation: { enabled: true, allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId },
    },
    interactions: { policy: policy(), url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    renderError: (ctx, out) => errorPage(ctx, out),
    ttl: {
      AccessToken: config.accessTokenTTL,
      AuthorizationCode: 60,
      ClientCredentials: config.accessTokenTTL,
      Grant: fortnight,
      IdToken: hour,
      Interaction: hour,
      RefreshToken: fortnight,
      Session: fortnight,
    },
  });
  provider.on('server_error', (ctx, err) => console.error(`${ctx.method} ${ctx.path}:`, err));
  provider.use(guard(new URL(config.issuer).host));
  provider.use(registration);
  provider.use(discovery);
  provider.use(interactions(provider, config));
  return provider;
}

// policy asks who signs in every time: to try several accounts is what this
// provider is there for.
function policy() {
  const { base, Check } = interactionPolicy;
  const prompts = base();
  prompts.get('login').checks.add(new Check('always', 'choose an account', (ctx) => (
    ctx.oidc.result?.login ? Check.NO_NEED_TO_PROMPT : Check.REQUEST_PROMPT
  )));
  return prompts;
}

// guard refuses names of this machine that are not loopback (DNS rebinding).
// Whatever the name, the endpoints named in answers are the issuer's own.
const guard = (host) => async (ctx, next) => {
  if (!loopback(ctx.hostname)) ctx.throw(421, 'this provider answers on loopback only');
  ctx.req.headers.host = host;
  ctx.set('X-Content-Type-Options', 'nosniff');
  ctx.set('Referrer-Policy', 'no-referrer');
  await next();
};

// registration shapes what a client registers and answers browsers' clients.
async function registration(ctx, next) {
  if (ctx.path !== '/reg') return next();
  ctx.set('Access-Control-Allow-Origin', '*');
  if (ctx.method === 'OPTIONS') {
    ctx.set('Access-Control-Allow-Methods', 'POST');
    ctx.set('Access-Control-Allow-Headers', ctx.get('Access-Control-Request-Headers') || 'Content-Type');
    ctx.set('Access-Control-Max-Age', '3600');
    ctx.status = 204;
    return undefined;
  }
  if (ctx.method === 'POST' && ctx.is('application/json')) {
    const body = await read(ctx.req, 64 * 1024);
    ctx.req.body = body; // the library says what is wrong with it
    try {
      const metadata = JSON.parse(body);
      if (metadata && typeof metadata === 'object' && !Array.isArray(metadata)) ctx.req.body = shape(metadata);
    } catch {} // as above
  }
  return next();
}

// discovery also names the scopes of the resources.
async function discovery(ctx, next) {
  await next();
  if (ctx.body?.scopes_supported) ctx.body.scopes_supported.push(...Object.keys(scopes));
}
