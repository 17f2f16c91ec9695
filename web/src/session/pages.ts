// Addresses of the sign-in, as pure functions.

/** The form of a tenant's slug, as the server has it. */
export const isSlug = (text: string): boolean => /^[a-z0-9-]{1,40}$/.test(text);

/** Where a sign-in leads: an address of this tenant's pages, or its first page. */
export function pageAfter(tenant: string, back: string | null | undefined): string {
  const own = `/t/${tenant}/ui`;
  const inside = back === own || back?.startsWith(`${own}/`) || back?.startsWith(`${own}?`);
  return back && inside ? back : own;
}

/** The chooser, for a tenant and the page to come back to. */
export function signInAddress(tenant: string, back?: string | null): string {
  const page = pageAfter(tenant, back);
  return `/?${new URLSearchParams(page === `/t/${tenant}/ui` ? { tenant } : { tenant, back: page })}`;
}

/** Where the browser goes to sign in at an identity provider. */
export function providerAddress(tenant: string, issuer: string, back: string | null, again = false): string {
  const own = `/t/${tenant}/ui`;
  const page = pageAfter(tenant, back);
  // The server takes addresses below the folder only.
  const query = new URLSearchParams({ issuer, return: page.startsWith(`${own}/`) ? page : `${own}/${page.slice(own.length)}` });
  if (again) query.set("again", "true");
  return `/t/${tenant}/api/v1/session/login?${query}`;
}

/** The connector self-test; inside the folder of pages when a sign-in shall lead there. */
export function connectAddress(tenant: string, reference = "", inside = false): string {
  const query = reference ? `?${new URLSearchParams({ reference })}` : "";
  return `/t/${tenant}${inside ? "/ui" : ""}/connect${query}`;
}
