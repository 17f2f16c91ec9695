// What the browser remembers between visits, none of it a credential: the
// tenant that was named last, where somebody was signed in, and the page that
// a sign-in under way shall lead to.

const lastTenant = "telltale.tenant";
const signedIn = (tenant: string) => `telltale.signed-in.${tenant}`;
const wanted = (tenant: string) => `telltale.back.${tenant}`;

export const recallTenant = (): string => localStorage.getItem(lastTenant) ?? "";

/** Notes whether somebody is signed in at a tenant. It spares strangers' visits the question. */
export function noteSession(tenant: string, here: boolean): void {
  if (here) {
    localStorage.setItem(lastTenant, tenant);
    localStorage.setItem(signedIn(tenant), "yes");
    sessionStorage.removeItem(wanted(tenant));
  } else localStorage.removeItem(signedIn(tenant));
}
export const maybeSignedIn = (tenant: string): boolean => localStorage.getItem(signedIn(tenant)) !== null;

/** The page to come back to outlives a sign-in that fails on the way. */
export const noteWanted = (tenant: string, page: string): void => sessionStorage.setItem(wanted(tenant), page);
export const recallWanted = (tenant: string): string | null => sessionStorage.getItem(wanted(tenant));
