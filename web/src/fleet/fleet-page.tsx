import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useParams, useSearchParams } from "react-router";
import { get, type Schemas } from "../api/client";
import { ago } from "../layout/format";
import { Problem } from "../layout/problem";
import { Counts } from "./counts";
import { NodeTable } from "./node-table";
import { Overview } from "./overview";
import { useSearchKeys } from "./use-search-keys";

const refreshMs = 5_000;

/** The whole fleet: counts, what is unwell, and a page of nodes at a time. */
export function FleetPage() {
  const tenant = useParams().tenant ?? "";
  const [params, setParams] = useSearchParams();
  const status = params.get("status") ?? undefined;
  const [search, setSearch] = useState(params.get("search") ?? "");
  const field = useRef<HTMLInputElement>(null);

  const overview = useQuery({
    queryKey: [tenant, "overview"],
    queryFn: ({ signal }) => get<Schemas["Overview"]>(tenant, "overview", {}, signal),
    refetchInterval: refreshMs,
  });
  const nodes = useInfiniteQuery({
    queryKey: [tenant, "nodes", status, search],
    queryFn: ({ signal, pageParam }) => get<Schemas["NodePage"]>(tenant, "nodes", { status, search, limit: 50, cursor: pageParam }, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next_cursor,
    refetchInterval: refreshMs,
    placeholderData: (before) => before,
  });

  useEffect(() => {
    document.title = `Fleet · ${tenant} · Telltale`;
  }, [tenant]);
  useSearchKeys(field);

  function choose(next: string | undefined) {
    setParams((p) => {
      if (next) p.set("status", next);
      else p.delete("status");
      return p;
    });
  }

  const rows = nodes.data?.pages.flatMap((p) => p.nodes) ?? [];
  return (
    <>
      <div className="heading">
        <h1>Fleet</h1>
        {overview.data && <span className="hint">last sign of life {ago(overview.data.freshness_s)}</span>}
      </div>
      {overview.error && <Problem error={overview.error} />}
      {overview.data && <Counts data={overview.data} status={status} onStatus={choose} />}
      <div className="split">
        <section aria-labelledby="nodes-heading">
          <div className="heading">
            <h2 id="nodes-heading">Nodes</h2>
            <input
              ref={field}
              type="search"
              aria-label="Search nodes by the beginning of their name"
              aria-keyshortcuts="/"
              title="/ goes here, Escape clears"
              placeholder="Name begins with…  ( / )"
              maxLength={128}
              value={search}
              onChange={(e) => setSearch(e.target.value)}
              onKeyDown={(e) => e.key === "Escape" && setSearch("")}
            />
          </div>
          {nodes.error && <Problem error={nodes.error} />}
          {nodes.data && <NodeTable tenant={tenant} nodes={rows} filtered={Boolean(status || search)} />}
          {nodes.hasNextPage && (
            <button type="button" onClick={() => nodes.fetchNextPage()} disabled={nodes.isFetchingNextPage}>
              {nodes.isFetchingNextPage ? "Loading…" : "Show more nodes"}
            </button>
          )}
        </section>
        {overview.data && <Overview data={overview.data} tenant={tenant} />}
      </div>
    </>
  );
}
