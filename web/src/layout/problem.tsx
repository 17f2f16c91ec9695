import { ApiError } from "../api/client";
import { Prose } from "./prose";

/** A failure in words: what is wrong, what to do, and the reference id. */
export function Problem({ error }: { error: Error }) {
  const api = error instanceof ApiError ? error : undefined;
  return (
    <div className="problem" role="alert">
      <strong>
        <Prose text={error.message} />
      </strong>
      {api?.next && (
        <span>
          <Prose text={api.next} />
        </span>
      )}
      {api?.reference && <code>reference {api.reference}</code>}
    </div>
  );
}
