// The demo accounts. A password is the account's name.
const accounts = {
  alice: { name: 'Alice Moreau', groups: ['acme-sre'], about: 'on call at acme: reads, traces, acts and approves' },
  bob: { name: 'Bob Tanaka', groups: ['acme-viewers'], about: 'looks on at acme: reads only' },
  carol: { name: 'Carol Okafor', groups: ['globex-sre'], about: 'on call at globex; nobody at acme' },
  dana: { name: 'Dana Lindqvist', groups: ['acme-admins', 'globex-admins'], about: 'administers acme and globex' },
  erin: { name: 'Erin Castillo', groups: [], about: 'in no group: signs in and may do nothing' },
};

export const accountList = Object.entries(accounts).map(([id, a]) => ({ id, ...a }));

// claimsOf are what tokens and introspection say about an account.
export function claimsOf(id) {
  const { name, groups } = accounts[id];
  return { name, email: `${id}@telltale.example`, groups };
}

export const known = (id) => Object.hasOwn(accounts, id);

// findAccount is the library's hook.
export async function findAccount(_ctx, id) {
  if (!known(id)) return undefined;
  return { accountId: id, claims: async () => ({ sub: id, ...claimsOf(id) }) };
}
