// Numbers and times for people. Unknown is an en dash, never zero.

export const unknown = "–";

const steps = ["", "k", "M", "G", "T", "P"];

/** 1234 → "1.23k"; three significant digits. */
export function short(v: number, base = 1000): string {
  let i = 0;
  let n = Math.abs(v);
  while (n >= base && i < steps.length - 1) {
    n /= base;
    i++;
  }
  const digits = n >= 100 || n === 0 ? 0 : n >= 10 ? 1 : 2;
  return `${v < 0 ? "-" : ""}${Number(n.toFixed(digits))}${steps[i]}`;
}

/** A duration in nanoseconds → "340 ns", "1.2 ms". */
export function nanoseconds(v: number): string {
  for (const [limit, unit] of [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "µs"],
  ] as const)
    if (v >= limit) return `${Number((v / limit).toPrecision(3))} ${unit}`;
  return `${Number(v.toPrecision(3))} ns`;
}

/** A value of a metric's unit, with "/s" for rates. */
export function value(v: number | null | undefined, unit: string, rate = false): string {
  if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
  const per = rate ? "/s" : "";
  switch (unit) {
    case "bytes":
      return `${short(v, 1024)}B${per}`;
    case "ns":
      return rate ? `${nanoseconds(v)}${per}` : nanoseconds(v);
    case "ratio":
      return `${Number((v * 100).toPrecision(3))} %`;
    case "seconds":
      return `${short(v)} s`;
    default:
      return `${short(v)}${per}`;
  }
}

/** Seconds of age → "4 s ago", "3 min ago"; null → "never". */
export function ago(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "never";
  const s = Math.max(0, seconds);
  if (s < 90) return `${Math.round(s)} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 172_800) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86_400)} days ago`;
}
