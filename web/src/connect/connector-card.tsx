import type { Schemas } from "../api/client";
import { Prose } from "../layout/prose";
import { CopyButton } from "./copy-button";
import { checkName } from "./told";

/** What to paste into a client, where everything is, and whether the tenant is set up. */
export function ConnectorCard({ connection }: { connection: Schemas["Connection"] }) {
  const { endpoints: at, checklist = [] } = connection;
  const command = `claude mcp add --transport http telltale ${at.mcp_url}`;
  const places = [
    ["Metadata", at.metadata_url],
    ["Metadata, beside the connector", at.metadata_beside_url],
    ["REST", at.rest_url],
  ] as const;
  return (
    <section className="card connector" aria-labelledby="connector-heading">
      <h2 id="connector-heading">Connector URL</h2>
      <p className="copyable">
        <code>{at.mcp_url}</code>
        <CopyButton text={at.mcp_url} what="connector URL" />
      </p>
      <p className="hint">Paste it into the client exactly as it stands. In Claude Code:</p>
      <p className="copyable">
        <code>{command}</code>
        <CopyButton text={command} what="command" />
      </p>
      <h3>Endpoints</h3>
      <dl className="places">
        {places.map(([name, url]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{name === "REST" ? <code>{url}</code> : <a href={url}><code>{url}</code></a>}</dd>
          </div>
        ))}
      </dl>
      {checklist.length > 0 && (
        <>
          <h3>Set-up</h3>
          <ul className="checks">
            {checklist.map((c, i) => (
              // The same check stands there once for each issuer; places never move.
              <li key={`${i} ${c.name}`} className={c.skipped ? "plain-step" : c.ok ? "good-step" : "bad-step"}>
                <b>
                  {checkName(c.name)}: {c.skipped ? "not looked at" : c.ok ? "fine" : "to be mended"}
                </b>
                {!c.name.endsWith("_url") && (
                  <span className="hint">
                    {c.received}
                    {!c.ok && c.expected && `; wanted: ${c.expected}`}
                  </span>
                )}
                {c.next && (
                  <span>
                    <Prose text={c.next} />
                  </span>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}
