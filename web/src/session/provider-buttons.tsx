import { useEffect, useState } from "react";
import { Problem } from "../layout/problem";
import { noteWanted } from "./last";
import { providerAddress } from "./pages";
import { useProviders } from "./use-session";

interface Props {
  tenant: string; // empty: none is named yet
  stale: boolean; // the reader is still typing
  back: string | null;
  again: boolean; // the provider shall ask who it is
}

/** One button for each identity provider of the tenant. They are links: a navigation that works without this page's script. */
export function ProviderButtons({ tenant, stale, back, again }: Props) {
  const providers = useProviders(tenant, tenant !== "");
  const [leaving, setLeaving] = useState("");

  useEffect(() => {
    // A page that the browser brings back from its memory is not on the way any more.
    const shown = () => setLeaving("");
    window.addEventListener("pageshow", shown);
    return () => window.removeEventListener("pageshow", shown);
  }, []);

  if (!tenant) return null;
  if (providers.error)
    return (
      <div className="providers">
        <Problem error={providers.error} />
        <button type="button" onClick={() => providers.refetch()} disabled={providers.isFetching}>
          {providers.isFetching ? "Trying…" : "Try again"}
        </button>
        <p className="or">or</p>
      </div>
    );
  const list = providers.data ?? [];
  if (list.length === 0) return null;
  return (
    <div className="providers" aria-busy={stale || leaving !== ""}>
      {list.map((p) => (
        <a
          key={p.id}
          className="button main"
          href={providerAddress(tenant, p.id, back, again)}
          aria-disabled={stale || undefined}
          onClick={(e) => {
            if (stale || leaving) e.preventDefault();
            else if (!e.ctrlKey && !e.metaKey && !e.shiftKey) {
              if (back) noteWanted(tenant, back);
              setLeaving(p.id);
            }
          }}
        >
          {leaving === p.id ? `Going to ${p.name}…` : `Sign in with ${p.name}`}
        </a>
      ))}
      <p className="or">or</p>
    </div>
  );
}
