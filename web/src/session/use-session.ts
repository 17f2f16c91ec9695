import { useQuery } from "@tanstack/react-query";
import { get, type Session } from "../api/client";

/** Who is signed in at a tenant; the error is a 401 when nobody is. */
export function useSession(tenant: string) {
  return useQuery({
    queryKey: [tenant, "session"],
    queryFn: ({ signal }) => get<Session>(tenant, "session", {}, signal),
    staleTime: 60_000,
    retry: false,
  });
}
