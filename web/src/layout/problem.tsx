import { ApiError } from "../api/client";

/** A failure in words: what is wrong, what to do, and the reference id. */
export function Problem({ error }: { error: Error }) {
  const api = error instanceof ApiError ? error : undefined;
  return (
    <div className="problem" role="alert">
      <strong>{error.message}</strong>
      {api?.next && <span>{api.next}</span>}
      {api?.reference && <code>reference {api.reference}</code>}
    </div>
  );
}
