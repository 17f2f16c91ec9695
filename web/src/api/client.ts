// The one way from the pages to the server: REST with the session cookie,
// which no script can read. Failures carry the server's problem document.
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];
export type Session = Schemas["Session"];

/** A refusal or failure, with what the server says to do next. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Problem>,
  ) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.name = "ApiError";
  }
  get next(): string {
    return this.problem.next?.[0] ?? "";
  }
  get reference(): string {
    return this.problem.reference_id ?? "";
  }
}

/** Query parameters; undefined and empty ones are left out. */
export type Params = Record<string, string | number | undefined>;

function apiUrl(tenant: string, path: string, params: Params = {}): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) if (v !== undefined && v !== "") q.set(k, String(v));
  const query = q.toString();
  return `/t/${encodeURIComponent(tenant)}/api/v1/${path}${query ? `?${query}` : ""}`;
}

const deadlineMs = 20_000;

async function send<T>(url: string, init: RequestInit, signal?: AbortSignal): Promise<T> {
  const timeout = AbortSignal.timeout(deadlineMs);
  let response: Response;
  try {
    response = await fetch(url, {
      ...init,
      credentials: "same-origin",
      headers: { Accept: "application/json", ...init.headers },
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new ApiError(0, { detail: timeout.aborted ? "the server did not answer in time" : "the server cannot be reached", next: ["see whether it runs; this page tries again by itself"] });
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = {};
  }
  if (!response.ok) throw new ApiError(response.status, body as Partial<Problem>);
  return body as T;
}

export const get = <T>(tenant: string, path: string, params: Params = {}, signal?: AbortSignal): Promise<T> => send<T>(apiUrl(tenant, path, params), {}, signal);

/** The connector self-test: it answers everybody, administrators more. */
export function getConnect<T>(tenant: string, reference: string, signal?: AbortSignal): Promise<T> {
  const query = reference ? `?${new URLSearchParams({ reference })}` : "";
  return send<T>(`/t/${encodeURIComponent(tenant)}/connect.json${query}`, {}, signal);
}

export const signIn = (tenant: string, token: string): Promise<Session> =>
  send<Session>(apiUrl(tenant, "session"), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });

export const signOut = (tenant: string, csrf: string): Promise<void> => send<void>(apiUrl(tenant, "session"), { method: "DELETE", headers: { "Telltale-CSRF": csrf } });
