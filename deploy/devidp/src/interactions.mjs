// Signing in and consenting: two pages and what their buttons do.
import { known } from './accounts.mjs';
import { read } from './body.mjs';
import { isStatic } from './clients.mjs';
import { consentPage, homePage, loginPage, send, style } from './pages.mjs';
import { scopes, tenantOf } from './resources.mjs';

// interactions is a Koa middleware.
export function interactions(provider, config) {
  return async (ctx, next) => {
    if (ctx.path === '/style.css') {
      ctx.type = 'css';
      ctx.set('Cache-Control', 'max-age=300');
      ctx.body = style;
      return undefined;
    }
    if (ctx.path === '/' && ctx.method === 'GET') return send(ctx, homePage(config));
    if (!/^\/interaction\/[\w-]+$/.test(ctx.path)) return next();
    let details;
    try {
      details = await provider.interactionDetails(ctx.req, ctx.res);
    } catch {
      return send(ctx, homePage(config, 'This sign-in has ended. Start it again where you came from.'), 400);
    }
    const client = await provider.Client.find(details.params.client_id);
    if (ctx.method === 'GET') return show(ctx, config, details, client);
    if (ctx.method !== 'POST') ctx.throw(405);
    const form = new URLSearchParams(await read(ctx.req, 8 * 1024));
    ctx.respond = false; // interactionFinished writes to ctx.res itself
    if (form.get('decision') === 'deny') {
      return provider.interactionFinished(ctx.req, ctx.res, { error: 'access_denied', error_description: 'the person declined' }, { mergeWithLastSubmission: false });
    }
    if (details.prompt.name === 'login') return login(ctx, provider, config, details, client, form);
    return consent(ctx, provider, details);
  };
}

function show(ctx, config, details, client, problem) {
  const view = {
    action: ctx.path,
    returnsTo: details.params.redirect_uri,
    client: { name: client.clientName ?? client.clientId, id: client.clientId, known: isStatic(client.clientId) },
    problem,
  };
  if (details.prompt.name === 'login') return send(ctx, loginPage({ ...view, current: details.session?.accountId }), problem ? 400 : 200);
  const resources = [details.params.resource ?? []].flat().map((url) => ({ url, tenant: tenantOf(config, url) }));
  const asked = (details.params.scope ?? '').split(' ').filter((s) => s !== '');
  return send(ctx, consentPage({
    ...view,
    account: details.session.accountId,
    resources,
    scopes: asked.map((word) => ({ word, about: scopes[word] ?? personal[word] })).filter((s) => s.about),
  }));
}

const personal = {
  openid: 'know which account you are, and your groups',
  profile: 'know your name',
  email: 'know your email address',
  offline_access: 'stay connected while you are away',
};

// login takes a button's account, or a name with its password.
async function login(ctx, provider, config, details, client, form) {
  const typed = form.get('name');
  const account = form.get('account') ?? (typed === form.get('password') ? typed : undefined);
  if (!account || !known(account)) {
    ctx.respond = true;
    return show(ctx, config, details, client, 'No such account, or not its password. A password is the account’s name.');
  }
  const returnTo = await provider.interactionResult(ctx.req, ctx.res, { login: { accountId: account } }, { mergeWithLastSubmission: false });
  if (details.session && details.session.accountId !== account) await signOut(provider, details.session.uid);
  ctx.respond = true;
  ctx.status = 303;
  return ctx.redirect(returnTo);
}

// signOut empties a session for the next account. (The library would do it by
// a page that posts itself with script.)
async function signOut(provider, uid) {
  const session = await provider.Session.findByUid(uid);
  if (!session) return;
  for (const field of ['accountId', 'loginTs', 'authorizations']) session[field] = undefined;
  await session.persist();
}

// consent grants all that is asked for: what it is worth decides the resource.
async function consent(ctx, provider, { grantId, params, prompt, session }) {
  const grant = (grantId && (await provider.Grant.find(grantId)))
    || new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, words] of Object.entries(missingResourceScopes ?? {})) grant.addResourceScope(resource, words.join(' '));
  return provider.interactionFinished(ctx.req, ctx.res, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
}
