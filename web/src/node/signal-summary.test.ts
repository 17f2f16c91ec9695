import { expect, it } from "vitest";
import { signalSummary } from "./signal-summary";

const signal = (level: "full" | "degraded" | "off", source: "" | "bpf" | "proc") => ({ component: "network", signal: "s", level, source, reason: "", since: "2026-01-01T00:00:00Z" });

it("counts what is full and where it comes from", () => {
  expect(signalSummary([signal("full", "proc"), signal("full", "bpf"), signal("full", "bpf")])).toBe("3 of 3 signals full; sources: bpf 2, proc 1");
  expect(signalSummary([signal("degraded", "proc"), signal("off", "")])).toBe("0 of 2 signals full; sources: proc 1");
  expect(signalSummary([signal("off", "")])).toBe("0 of 1 signals full");
});
