import { fileURLToPath } from 'node:url'

export { type AgentOptions, type RunningAgent, startAgent } from './agent.ts'
export { BadOptions } from './bad-options.ts'
export { workOf } from './command-line.ts'
export { addedEnv } from './process/inherited.ts'
export { isExpected, untilStopped } from './process/run.ts'

/** The agent as a program, beside this file: its supervisors and threads are started from it. */
export const AGENT_FILE = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? './main.ts' : './main.js', import.meta.url),
)
