/** Whether a host name is this machine itself. */
const loopback = (host: string): boolean => host === "localhost" || host.endsWith(".localhost") || host === "[::1]" || /^127(\.\d{1,3}){3}$/.test(host);

/** Where a token comes from: `make up` prints one, but only to who runs it here. */
export const tokenAdvice = (host: string): string => (loopback(host) ? "check the tenant's name and the token; `make up` prints both" : "check the tenant's name, or ask your administrator for a token of this tenant");
