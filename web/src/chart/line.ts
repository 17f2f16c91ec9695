import type { Points } from "./points";

/** One drawn line. Its points are parallel to the chart's times; null is a gap. */
export interface Line {
  id: string; // stable: the metric within its module, and its labels
  name: string; // for people
  metric: string; // the exact metric and its labels
  unit: string;
  rate: boolean;
  points: Points;
}
