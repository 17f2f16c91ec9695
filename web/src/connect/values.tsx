import type { Verdict } from "./use-connect";

/** What a check wanted and found; shown to administrators alone, who get it from the server. */
export function Values({ of }: { of: Partial<Verdict> }) {
  const rows = [
    ["Expected", of.expected],
    ["Received", of.received],
    ["Issuer", of.issuer],
    ["Principal", of.principal],
  ] as const;
  const known = rows.filter(([, v]) => v);
  if (known.length === 0) return null;
  return (
    <dl className="values">
      {known.map(([name, v]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <code>{v}</code>
          </dd>
        </div>
      ))}
    </dl>
  );
}
