// One server for all files, started before the first and stopped after the last.
import type { TestProject } from "vitest/node";
import { type Ready, startStack } from "./stack";

declare module "vitest" {
  interface ProvidedContext {
    ready: Ready;
  }
}

export default async function setup(project: TestProject) {
  const stack = await startStack();
  project.provide("ready", stack.ready);
  return () => stack.stop();
}
