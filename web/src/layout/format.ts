// Numbers and times for people. Unknown is an en dash, never zero. A unit
// follows its number after a space; rates end in "/s". Bytes go by 1024 (KiB,
// MiB), everything else by 1000.

export const unknown = "–";

interface Ladder {
  base: number;
  names: string[]; // the unit after the number, its space included; smallest first
}

/** The names of a metric unit and its multiples. */
function ladder(unit: string): Ladder {
  switch (unit) {
    case "bytes":
      return { base: 1024, names: [" B", " KiB", " MiB", " GiB", " TiB", " PiB"] };
    case "ns":
      return { base: 1000, names: [" ns", " µs", " ms", " s"] };
    case "seconds":
      return { base: 1000, names: [" s"] };
    default:
      return { base: 1000, names: ["", "k", "M", "G", "T", "P"] };
  }
}

/** What numbers as large as v are divided by, and the unit that follows them then. */
export function scale(v: number, unit: string, rate = false): { divisor: number; suffix: string } {
  const per = rate ? "/s" : "";
  if (unit === "ratio") return { divisor: 0.01, suffix: ` %${per}` };
  const { base, names } = ladder(unit);
  let i = 0;
  while (Math.abs(v) >= base ** (i + 1) && i < names.length - 1) i++;
  return { divisor: base ** i, suffix: `${names[i]}${per}` };
}

const significant = (n: number) => Number(Math.abs(n) >= 1000 ? Math.round(n) : n.toPrecision(3));

/** A value of a metric's unit: "1.91 MiB/s", "25.6 %", "340 µs", "1.23k/s". */
export function value(v: number | null | undefined, unit: string, rate = false): string {
  if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
  let { divisor, suffix } = scale(v, unit, rate);
  // What rounds up to the next unit is written in it: 999.9 µs is 1 ms.
  const rounded = significant(v / divisor) * divisor;
  ({ divisor, suffix } = scale(rounded, unit, rate));
  return `${significant(rounded / divisor)}${suffix}`;
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

/** 1 → "1 node", 3 → "3 nodes". */
export const counted = (n: number, one: string, many = `${one}s`): string => `${n} ${n === 1 ? one : many}`;

const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** The time of day of a moment in seconds since 1970, in the reader's zone. */
export const clock = (at: number, withSeconds = false): string => (withSeconds ? seconds : minutes).format(at * 1000);

const moments = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** A moment of the server in the reader's zone, with its day. */
export const moment = (iso: string): string => {
  const at = Date.parse(iso);
  return Number.isNaN(at) ? unknown : moments.format(at);
};

/** Begins with a capital, unless it begins with code in backticks. */
export const sentence = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1);
