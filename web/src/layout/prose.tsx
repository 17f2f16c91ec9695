import { sentence } from "./format";

/** A sentence of the server or of a page; what stands in backticks is code. */
export function Prose({ text }: { text: string }) {
  // Every second part stands between backticks; places never move.
  return <>{sentence(text).split("`").map((part, i) => (i % 2 === 1 ? <code key={`${i} ${part}`}>{part}</code> : part))}</>;
}
