import type { Schemas } from "../api/client";

type Capability = Schemas["Capability"];

/** "27 of 27 signals full; sources: bpf 18, proc 9". */
export function signalSummary(capabilities: Capability[]): string {
  const full = capabilities.filter((c) => c.level === "full").length;
  const sources = new Map<string, number>();
  for (const { source } of capabilities) if (source) sources.set(source, (sources.get(source) ?? 0) + 1);
  const named = [...sources].sort(([a, m], [b, n]) => n - m || a.localeCompare(b)).map(([s, n]) => `${s} ${n}`);
  return `${full} of ${capabilities.length} signals full${named.length > 0 ? `; sources: ${named.join(", ")}` : ""}`;
}
