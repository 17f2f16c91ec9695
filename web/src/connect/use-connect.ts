import { useQuery } from "@tanstack/react-query";
import { ApiError, getConnect, type Schemas } from "../api/client";

export const refreshMs = 5_000;

/** The tenant's connector, and for its administrators the last attempts, kept fresh while the page is visible. */
export function useConnection(tenant: string) {
  return useQuery({
    queryKey: [tenant, "connect"],
    queryFn: ({ signal }) => getConnect<Schemas["Connection"]>(tenant, "", signal),
    // A hidden page asks nothing: refetchIntervalInBackground is off.
    refetchInterval: (q) => (q.state.data?.admin ? refreshMs : false),
  });
}

/** What a reference id leads to: values too, for administrators. */
export type Verdict = Schemas["ConnectVerdict"] & Partial<Schemas["ConnectAttempt"]>;

export function useVerdict(tenant: string, reference: string) {
  return useQuery({
    queryKey: [tenant, "connect", reference],
    queryFn: async ({ signal }): Promise<Verdict> => {
      const got = await getConnect<Schemas["Connection"] | Schemas["ConnectVerdict"]>(tenant, reference, signal);
      if ("class" in got) return got;
      if (got.attempt) return got.attempt;
      throw new ApiError(0, { detail: "the server's answer holds no attempt" });
    },
    enabled: reference !== "",
    staleTime: 60_000,
    // An attempt of this moment is written within a second.
    retry: (n, error) => error instanceof ApiError && (error.status === 404 || error.status === 0 || error.status >= 500) && n < 2,
    retryDelay: 800,
  });
}
