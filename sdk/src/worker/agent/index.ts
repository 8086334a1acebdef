import { fileURLToPath } from 'node:url'

export { type AgentOptions, type RunningAgent, startAgent } from './agent.ts'
export { untilStopped, workOf } from './command-line.ts'
export { BadOptions, isExpected } from './errors.ts'
export { addedEnv } from './process/inherited.ts'

/** The file of the agent program, from which supervisors and threads are started. */
export const AGENT_FILE = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? './main.ts' : './main.js', import.meta.url),
)
