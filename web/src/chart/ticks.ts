import { scale } from "../layout/format";

/** The marks of a value axis from 0 to top, in one unit, each with its own label; zero needs no unit. */
interface Ticks {
  at: number[];
  labels: string[];
  top: number;
}

/** Three to six round marks that reach at least max: steps of 1, 2 or 5 in the unit shown. */
export function ticks(max: number, unit: string, rate: boolean): Ticks {
  const most = max > 0 ? max : unit === "ratio" ? 0.01 : 1;
  const { divisor, suffix } = scale(most, unit, rate);
  const rough = most / divisor / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((s) => s * power >= rough * 0.999) ?? 10);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const count = Math.ceil(most / divisor / step - 1e-9);
  const numbers = Array.from({ length: count + 1 }, (_, i) => Number((i * step).toFixed(digits)));
  return { at: numbers.map((n) => n * divisor), labels: numbers.map((n) => (n === 0 ? "0" : `${n}${suffix}`)), top: (numbers[count] ?? 1) * divisor };
}
