import { useQuery } from "@tanstack/react-query";
import { ApiError, get, type Schemas, type Session } from "../api/client";
import { maybeSignedIn, noteSession } from "./last";

interface Options {
  onlyIfLikely?: boolean; // ask only where somebody was signed in: a stranger's question is noted at the tenant's door
}

/** Who is signed in at a tenant; the error is a 401 when nobody is. */
export function useSession(tenant: string, { onlyIfLikely = false }: Options = {}) {
  return useQuery({
    queryKey: [tenant, "session"],
    queryFn: async ({ signal }) => {
      try {
        const session = await get<Session>(tenant, "session", {}, signal);
        noteSession(tenant, true);
        return session;
      } catch (error) {
        if (isSignedOut(error)) noteSession(tenant, false);
        throw error;
      }
    },
    enabled: !onlyIfLikely || maybeSignedIn(tenant),
    staleTime: 60_000,
    retry: false,
  });
}

/** Whether nobody is signed in, or no longer. */
export const isSignedOut = (error: unknown): boolean => error instanceof ApiError && error.status === 401;

/** Where people of a tenant sign in; an unknown tenant has nowhere. */
export function useProviders(tenant: string, enabled = true) {
  return useQuery({
    queryKey: [tenant, "providers"],
    queryFn: ({ signal }) => get<Schemas["SignInProviders"]>(tenant, "session/providers", {}, signal).then((r) => r.providers),
    enabled,
    staleTime: 60_000,
    retry: 1,
  });
}
