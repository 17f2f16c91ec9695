import { Link, useParams } from "react-router";

export function NotHere() {
  const { tenant } = useParams();
  return (
    <section className="empty">
      <h1>There is no such page</h1>
      <p>
        <Link to={tenant ? `/t/${tenant}/ui` : "/"}>{tenant ? "To the fleet" : "To the sign-in"}</Link>
      </p>
    </section>
  );
}
