import type { Schemas } from "../api/client";
import { clock } from "../layout/format";
import { Headlines } from "./headlines";

/** What the agent itself had to drop: "12 windows of network, 09:10 to 09:14". */
export function agentLosses(counters: Record<string, number>): [string, number][] {
  return Object.entries(counters).flatMap(([key, n]): [string, number][] => {
    const component = key.startsWith("lost_windows_") ? key.slice("lost_windows_".length) : "";
    if (!component || n === 0) return [];
    const [from = 0, to = 0] = [counters[`lost_from_unix_s_${component}`], counters[`lost_to_unix_s_${component}`]];
    const when = from > 0 ? `, last from ${clock(from)} to ${clock(to)}` : "";
    return [[`windows of ${component} dropped on the node${when}`, n]];
  });
}

/** What the node is, its latest headline values, and what is known to be missing of its data. */
export function Facts({ node }: { node: Schemas["NodeDetail"] }) {
  const facts: [string, string | undefined][] = [
    ["Agent", node.agent_version],
    ["Kernel", node.kernel],
    ["System", [node.os, node.arch].filter(Boolean).join(" ")],
    ["Clock skew", node.skew_ms === undefined ? undefined : `${node.skew_ms} ms${node.skew_corrected ? ", corrected" : ""}`],
    ["Certificate", node.cert_expires_days === undefined ? undefined : node.cert_expires_days < 0 ? "expired" : `${node.cert_expires_days.toFixed(1)} days left`],
    ["Node id", node.node],
  ];
  const losses = [
    ...agentLosses(node.loss.agent),
    ...(node.loss.missing_seq > 0 ? [["reports that never arrived", node.loss.missing_seq] as const] : []),
    ...(node.loss.refused_points > 0 ? [["values refused", node.loss.refused_points] as const] : []),
  ];
  return (
    <>
      <dl className="facts">
        {facts.map(
          ([k, v]) =>
            v && (
              <div key={k}>
                <dt>{k}</dt>
                <dd>{v}</dd>
              </div>
            ),
        )}
        {Object.entries(node.labels).map(([k, v]) => (
          <div key={`label ${k}`}>
            <dt>{k}</dt>
            <dd>{v}</dd>
          </div>
        ))}
      </dl>
      <Headlines values={node.headlines} />
      {(node.quarantine.length > 0 || losses.length > 0) && (
        <section className="problem" aria-label="Missing data">
          <strong>Some data of this node is missing</strong>
          {losses.map(([what, n]) => (
            <span key={what}>
              {n} {what.replaceAll("_", " ")}
            </span>
          ))}
          {node.quarantine.map((q) => (
            <span key={q.reason}>
              {q.count} kept out: {q.reason.replaceAll("_", " ")}
              {q.example && <code>{q.example}</code>}
            </span>
          ))}
        </section>
      )}
    </>
  );
}
