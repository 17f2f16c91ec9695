import type { Schemas } from "../api/client";
import { spell } from "../layout/names";

type Share = Schemas["CapabilityShare"];

/** Signals that share a level, a reason and a number of nodes. */
interface Group {
  level: string;
  reason: string;
  nodes: number;
  components: string[];
  signals: string[]; // "network drops"
}

/** Signals with the same story told once, the widest first. */
export function groups(unhealthy: Share[]): Group[] {
  const found = new Map<string, Group>();
  for (const { component, signal, level, nodes, reason = "" } of unhealthy) {
    const key = JSON.stringify([level, reason, nodes]);
    const g = found.get(key) ?? { level, reason, nodes, components: [], signals: [] };
    if (!g.components.includes(component)) g.components.push(component);
    g.signals.push(`${component} ${spell(signal)}`);
    found.set(key, g);
  }
  return [...found.values()].sort((a, b) => b.nodes - a.nodes || b.signals.length - a.signals.length);
}

/** "network drops", or "15 signals of network, storage". */
export function subject({ signals, components }: Group): string {
  if (signals.length === 1) return signals[0] ?? "";
  return `${signals.length} signals of ${components.join(", ")}`;
}
