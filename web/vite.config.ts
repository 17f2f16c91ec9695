import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [react()],
  // public/ holds nothing but .gitkeep, which each build copies into dist: the
  // server embeds that folder, built or not, and it must not be empty.
  build: {
    target: "es2022",
    // Data URIs would need a wider content security policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { "^/t/[^/]+/api/": "http://127.0.0.1:8400", "/version": "http://127.0.0.1:8400" },
  },
  test: { include: ["src/**/*.test.ts"] },
});
