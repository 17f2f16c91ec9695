import type { Schemas } from "../api/client";
import { value } from "../layout/format";

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
    ...Object.entries(node.loss.agent).filter(([, n]) => n > 0),
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
      {node.headlines.length > 0 && (
        <ul className="tiles" aria-label="Latest values">
          {node.headlines.map((h) => (
            <li key={h.metric} className="tile">
              <b>{value(h.value, h.unit, h.stat === "rate_per_s")}</b> {h.metric}
            </li>
          ))}
        </ul>
      )}
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
