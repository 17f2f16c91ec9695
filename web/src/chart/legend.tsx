import { counted, value } from "../layout/format";
import type { Line } from "./line";
import { allZero, lastKnown } from "./points";

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  left: number; // series that are not drawn
}

/** The newest known value of each line; those at zero are folded away. */
export function Legend({ title, times, lines, left }: Props) {
  const rows = lines.map((line, i) => ({ line, colour: (i % 8) + 1, zero: allZero(line.points) }));
  const quiet = rows.filter((r) => r.zero);
  // A value that others have outrun is no present value.
  const newest = Math.max(...lines.map((l) => lastKnown(l.points)));
  const table = (label: string, part: typeof rows) => (
    <table className="legend" aria-label={label}>
      <tbody>
        {part.map(({ line, colour }) => {
          const at = lastKnown(line.points);
          return (
            <tr key={line.id} data-series={line.id} data-time={times[at] ?? ""} data-value={line.points[at] ?? ""}>
              <th scope="row" title={line.metric}>
                <span className={`swatch series-${colour}`} aria-hidden="true" /> {line.name}
              </th>
              <td className="num">{value(at < newest - 1 ? undefined : line.points[at], line.unit, line.rate)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
  return (
    <>
      {quiet.length < rows.length && table(`${title}: newest values`, rows.filter((r) => !r.zero))}
      {quiet.length > 0 && (
        <details className="quiet-series">
          <summary>{counted(quiet.length, "series", "series")} at zero</summary>
          {table(`${title}: series at zero`, quiet)}
        </details>
      )}
      {left > 0 && <p className="hint">{counted(left, "quieter series", "quieter series")} not drawn</p>}
    </>
  );
}
