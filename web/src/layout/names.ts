// Names of metrics for people. The exact name stays in titles and data
// attributes; what has no entry here is spelt out by rule, so that a metric
// the page has never seen is still readable.

const whole: Record<string, string> = {
  "host.disk_fullest_ratio": "fullest disk",
  "host.load1": "load, 1 min",
  "host.load5": "load, 5 min",
  "host.load15": "load, 15 min",
  "network.retransmit_segments": "retransmitted segments",
  "process.exits_by_signal": "exits",
  "storage.ios": "operations",
  "storage.total_bytes": "throughput",
  "storage.total_ios": "operations",
  "storage.total_errors": "errors",
};

const words: Record<string, string> = { cpu: "CPU", cpus: "CPUs", io: "I/O", oom: "OOM", tcp: "TCP", runq: "run-queue", rss: "memory", srtt: "round trip", rx: "received", tx: "sent", if: "" };

/** "process.runq_wait_ns" → "run-queue wait": no module, no unit, no underscores. */
export function metricName(metric: string): string {
  const known = whole[metric];
  if (known) return known;
  const bare = metric.slice(metric.indexOf(".") + 1);
  return spell(bare.replace(/_(ns|ratio|seconds)$/, "").replace(/(^|_)(rx|tx)_bytes$/, "$1$2"));
}

/** "oom_kill" → "OOM kill". */
export const spell = (name: string): string =>
  name
    .split("_")
    .map((w) => words[w] ?? w)
    .filter(Boolean)
    .join(" ");

const order = ["host", "network", "storage", "process"];
const rank = (module: string) => (order.indexOf(module) + order.length + 1) % (order.length + 1);

/** Rows by the module of their metric, in the order of the pages; unknown modules come last. */
export function byModule<T extends { metric: string }>(rows: T[]): [string, T[]][] {
  const modules = [...new Set(rows.map((r) => moduleOf(r.metric)))].sort((a, b) => rank(a) - rank(b));
  return modules.map((m) => [m, rows.filter((r) => moduleOf(r.metric) === m)]);
}

/** The module of a metric: "process.forks" → "process". */
export const moduleOf = (metric: string): string => metric.slice(0, Math.max(0, metric.indexOf(".")));
