// The pages: plain HTML that needs no script, one style sheet, strict CSP.
import { accountList } from './accounts.mjs';

export const style = `
:root { color-scheme: light dark; --back: #f4f5f7; --card: #fff; --text: #1c2430; --soft: #5a6675; --line: #d8dde4; --accent: #1f5fbf; --on: #fff; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --back: #12161c; --card: #1b2129; --text: #e6eaf0; --soft: #9aa6b5; --line: #333d49; --accent: #6ea8fe; --on: #0b1420; --warn: #f0b866; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 30rem; margin: 6vh auto; padding: 1.75rem; background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
h1 { margin: 0 0 .25rem; font-size: 1.35rem; }
h2 { margin: 1.4rem 0 .4rem; font-size: .95rem; }
p { margin: .4rem 0; }
small, .soft { color: var(--soft); font-size: .9rem; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
.warn { color: var(--warn); }
button { font: inherit; cursor: pointer; border-radius: 8px; border: 1px solid var(--line); background: transparent; color: inherit; padding: .6rem .9rem; }
button:hover { border-color: var(--accent); }
button:focus-visible, input:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--on); font-weight: 600; }
.accounts button { display: block; width: 100%; margin: .5rem 0; text-align: left; }
.accounts small { display: block; }
.row { display: flex; gap: .6rem; flex-wrap: wrap; margin-top: 1.4rem; }
label { display: block; margin: .6rem 0; font-size: .9rem; color: var(--soft); }
input { display: block; width: 100%; margin-top: .2rem; padding: .5rem .6rem; font: inherit; color: var(--text); background: var(--back); border: 1px solid var(--line); border-radius: 8px; }
ul { margin: .3rem 0; padding: 0; list-style: none; }
li { padding: .3rem 0; border-top: 1px solid var(--line); }
li:first-child { border-top: 0; }
li small { display: block; }
@media (max-width: 34rem) { main { margin: 0; min-height: 100vh; border: 0; border-radius: 0; } }
`;

// html escapes every value but those that it made itself.
class Markup extends String {}
const entities = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
function html(strings, ...values) {
  const one = (v) => {
    if (v instanceof Markup) return v;
    if (Array.isArray(v)) return v.map(one).join('');
    return v === undefined || v === false ? '' : String(v).replace(/[&<>"']/g, (c) => entities[c]);
  };
  return new Markup(String.raw({ raw: strings }, ...values.map(one)));
}

// send answers with a page. Its buttons lead here and, by redirects that a
// browser holds against form-action, on to where the client wants the answer.
export function send(ctx, page, status = 200) {
  let target = '';
  const url = page.returnsTo && URL.parse(page.returnsTo);
  if (url) target = ['http:', 'https:'].includes(url.protocol) ? ` ${url.origin}` : ` ${url.protocol}`;
  ctx.status = status;
  ctx.type = 'html';
  ctx.set('Content-Security-Policy', `default-src 'none'; style-src 'self'; form-action 'self'${target}; base-uri 'none'; frame-ancestors 'none'`);
  ctx.set('Cache-Control', 'no-store');
  ctx.body = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${html`${page.title}`} · demo sign-in</title><link rel="stylesheet" href="/style.css"></head>
<body><main>${page.body}</main></body>
</html>
`;
}

const who = (client) => html`<strong>${client.name}</strong>${client.name !== client.id && html` <small>(<code>${client.id}</code>)</small>`}`;

export function loginPage({ action, client, current, problem, returnsTo }) {
  return {
    title: 'Sign in',
    returnsTo,
    body: html`
<h1>Sign in</h1>
<p class="soft">to continue to ${who(client)}</p>
${problem && html`<p class="warn" role="alert">${problem}</p>`}
<form method="post" action="${action}" class="accounts">
${accountList.map((a) => html`<button name="account" value="${a.id}"><strong>${a.name}</strong> · ${a.id}${current === a.id && html` <small>(signed in last)</small>`}<small>${a.about}</small></button>
`)}</form>
<h2>Or with a password</h2>
<form method="post" action="${action}">
<label>Account <input name="name" autocomplete="username" autocapitalize="none" required></label>
<label>Password (the account’s name) <input name="password" type="password" autocomplete="current-password" required></label>
<p class="row"><button class="main">Sign in</button> <button name="decision" value="deny" formnovalidate>Cancel</button></p>
</form>
<p class="soft">A demo identity provider on this machine. Nothing here is secret.</p>`,
  };
}

export function consentPage({ action, account, client, resources, scopes, returnsTo }) {
  return {
    title: 'Allow access',
    returnsTo,
    body: html`
<h1>Allow access?</h1>
<p>${who(client)} wants to act for <strong>${account}</strong>.</p>
${!client.known && html`<p class="warn">This client named itself. It gets the answer at <code>${returnsTo}</code>.</p>`}
<h2>Where</h2>
${resources.length > 0
    ? html`<ul>${resources.map((r) => html`<li><code>${r.url}</code>${r.tenant && html`<small>tenant ${r.tenant}</small>`}</li>`)}</ul>`
    : html`<p class="soft">It named no resource: its token opens nothing in Telltale.</p>`}
<h2>It asks to</h2>
<ul>${scopes.map((s) => html`<li>${s.about} <small><code>${s.word}</code></small></li>`)}</ul>
<p class="soft">The tenant decides what you may do there; nothing here adds to it.</p>
<form method="post" action="${action}" class="row">
<button class="main" name="decision" value="allow">Allow</button>
<button name="decision" value="deny">Deny</button>
</form>`,
  };
}

export function homePage(config, problem) {
  return {
    title: 'Demo identity provider',
    body: html`
<h1>Demo identity provider</h1>
${problem && html`<p class="warn" role="alert">${problem}</p>`}
<p>It signs people in to Telltale on this machine: <code>${config.baseURL}</code>. Start there, or in your MCP client.</p>
<h2>Accounts</h2>
<ul>${accountList.map((a) => html`<li><strong>${a.id}</strong> <small>${a.about}</small></li>`)}</ul>
<p class="soft">Issuer <code>${config.issuer}</code></p>`,
  };
}

export function errorPage(ctx, out) {
  send(ctx, {
    title: 'Not possible',
    body: html`
<h1>This does not work</h1>
<p class="warn" role="alert"><code>${out.error}</code> ${out.error_description}</p>
<p class="soft">The program that sent you here asked for something this provider does not do. Nothing was granted.</p>`,
  }, ctx.status);
}
