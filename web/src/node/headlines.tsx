import type { Schemas } from "../api/client";
import { value } from "../layout/format";
import { byModule, metricName } from "../layout/names";

/** The latest headline values, a row of equal cells for each module. */
export function Headlines({ values }: { values: Schemas["HeadlineValue"][] }) {
  if (values.length === 0) return null;
  return (
    <section className="card headlines" aria-label="Latest values">
      {byModule(values).map(([module, rows]) => (
        <div key={module} className="headline-row">
          <h2>{module}</h2>
          <dl>
            {rows.map((h) => (
              <div key={h.metric} title={h.metric} data-metric={h.metric}>
                <dt>{metricName(h.metric)}</dt>
                <dd>{value(h.value, h.unit, h.stat === "rate_per_s")}</dd>
              </div>
            ))}
          </dl>
        </div>
      ))}
    </section>
  );
}
