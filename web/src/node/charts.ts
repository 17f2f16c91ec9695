// Which metrics a node's page draws together. A chart shows one unit.

export interface ChartSpec {
  title: string;
  metrics: string[];
}

export const modules: { module: string; charts: ChartSpec[] }[] = [
  {
    module: "network",
    charts: [
      { title: "Interface traffic", metrics: ["network.if_rx_bytes", "network.if_tx_bytes"] },
      { title: "TCP connections", metrics: ["network.tcp_active_opens", "network.tcp_passive_opens", "network.tcp_closes"] },
      { title: "Trouble", metrics: ["network.retransmit_segments", "network.packets_dropped", "network.tcp_resets_in", "network.tcp_resets_out", "network.listen_overflows"] },
    ],
  },
  {
    module: "storage",
    charts: [
      { title: "Throughput", metrics: ["storage.bytes"] },
      { title: "Operations", metrics: ["storage.ios", "storage.errors"] },
      { title: "Latency, 95th percentile", metrics: ["storage.latency_ns"] },
    ],
  },
  {
    module: "process",
    charts: [
      { title: "Run-queue latency, 95th percentile", metrics: ["process.runq_latency_ns"] },
      { title: "Starts and ends", metrics: ["process.forks", "process.execs", "process.exits"] },
      { title: "Deaths", metrics: ["process.exits_by_signal", "process.oom_kills"] },
    ],
  },
];

/** All metrics of one module's charts, for one question to the server. */
export const metricsOf = (charts: ChartSpec[]): string[] => [...new Set(charts.flatMap((c) => c.metrics))];
