import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { root: import.meta.dirname, include: ["**/*.e2e.ts"], globalSetup: "./setup.ts", testTimeout: 120_000, hookTimeout: 180_000, fileParallelism: false },
});
