import type { FormEvent } from "react";
import { Link } from "react-router";
import { ApiError } from "../api/client";
import { moment } from "../layout/format";
import { Problem } from "../layout/problem";
import { Prose } from "../layout/prose";
import { classTitle, detailText } from "./told";
import { useVerdict, type Verdict } from "./use-connect";
import { Values } from "./values";

interface Props {
  tenant: string;
  reference: string;
  onReference: (reference: string) => void;
  again: string | undefined; // where somebody else can sign in
}

/** From the reference id of a refusal to the check that failed and what to do. */
export function LookupCard({ tenant, reference, onReference, again }: Props) {
  const verdict = useVerdict(tenant, reference);
  function submit(e: FormEvent<HTMLFormElement>) {
    e.preventDefault();
    const asked = String(new FormData(e.currentTarget).get("reference")).trim();
    if (asked && asked === reference) void verdict.refetch();
    else onReference(asked);
  }
  return (
    <section className="card lookup" aria-labelledby="lookup-heading">
      <h2 id="lookup-heading">{reference ? "What went wrong" : "Something refused?"}</h2>
      {reference && verdict.isFetching && !verdict.data && <p role="status">Looking for it…</p>}
      {verdict.error && !verdict.isFetching && <Problem error={verdict.error} />}
      {verdict.error instanceof ApiError && verdict.error.status === 0 && <p className="hint">The look-up can be repeated below.</p>}
      {verdict.data && <Told verdict={verdict.data} again={again} />}
      <form onSubmit={submit} key={reference}>
        <label htmlFor="reference">Reference id</label>
        <div className="row">
          <input id="reference" name="reference" type="text" maxLength={128} defaultValue={reference} autoComplete="off" autoCapitalize="none" spellCheck={false} aria-describedby="reference-help" />
          <button type="submit">Look up</button>
        </div>
        <p id="reference-help" className="hint">
          Every refusal carries one: in the header <code>Telltale-Reference</code> and in the answer. It is good for 24 hours.
        </p>
      </form>
    </section>
  );
}

function Told({ verdict, again }: { verdict: Verdict; again: string | undefined }) {
  const fine = verdict.class === "none";
  return (
    <div className={fine ? "verdict fine" : "verdict"} role="status">
      <p className="verdict-title">
        <strong>{classTitle(verdict.class)}</strong> <code className="class">{verdict.class}</code>
      </p>
      <p>
        <Prose text={`${detailText(verdict.detail)}.`} />
      </p>
      {verdict.next.map((n) => (
        <p key={n} className="next">
          <b>Next:</b> {n}
        </p>
      ))}
      {verdict.at && (
        <p className="hint">
          <time dateTime={verdict.at}>{moment(verdict.at)}</time> · {verdict.surface}
          {verdict.from && ` · from ${verdict.from}`}
        </p>
      )}
      <Values of={verdict} />
      {!fine && again && (
        <p>
          <Link to={again}>Sign in as somebody else</Link>
        </p>
      )}
    </div>
  );
}
