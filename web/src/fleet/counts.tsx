import type { Schemas } from "../api/client";

const order = ["online", "stale", "offline", "duplicate", "quarantined", "revoked", "never"];
const always = ["online", "offline"];

interface Props {
  data: Schemas["Overview"];
  status: string | undefined;
  onStatus: (s: string | undefined) => void;
}

/** Nodes by state; each count is a filter. */
export function Counts({ data, status, onStatus }: Props) {
  const counts = Object.entries(data.by_status)
    .filter(([s, n]) => n > 0 || s === status || always.includes(s))
    .sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  return (
    <div className="tiles" role="group" aria-label="Nodes by state">
      <button type="button" className="tile" aria-pressed={!status} onClick={() => onStatus(undefined)}>
        <b>{data.nodes}</b> all
      </button>
      {counts.map(([s, n]) => (
        <button type="button" key={s} className={`tile status-${s}`} aria-pressed={status === s} onClick={() => onStatus(status === s ? undefined : s)}>
          <b>{n}</b> {s}
        </button>
      ))}
    </div>
  );
}
