import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";
import { ApiError } from "./api/client";
import { App } from "./app";
import { isSignedOut } from "./session/use-session";
import "./layout/style.css";

const queries: QueryClient = new QueryClient({
  // A session that ends under a page's hands is looked at again at once, and
  // the frame leads to the sign-in.
  queryCache: new QueryCache({
    onError: (error, query) => {
      const [tenant, what] = query.queryKey;
      if (isSignedOut(error) && what !== "session") void queries.invalidateQueries({ queryKey: [tenant, "session"] });
    },
  }),
  defaultOptions: {
    queries: {
      // A refusal stays one; only what may pass is tried again.
      retry: (n, error) => n < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
      refetchOnWindowFocus: true,
      staleTime: 2_000,
    },
  },
});

const root = document.getElementById("root");
if (!root) throw new Error("the page has no root element");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <BrowserRouter>
        <App />
      </BrowserRouter>
    </QueryClientProvider>
  </StrictMode>,
);
