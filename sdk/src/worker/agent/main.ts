import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { isMainThread, workerData } from 'node:worker_threads'

/** This file is the agent, the supervisor of each run, and the heartbeat thread. */
const file = fileURLToPath(import.meta.url)

if (!isMainThread && workerData?.role === 'heart') {
  const { beatInThread } = await import('./heartbeat-thread.ts')
  beatInThread(workerData)
} else if (process.argv[2] === 'supervise') {
  const { supervise } = await import('./process/supervisor.ts')
  supervise()
} else if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === file) {
  const { runAgent } = await import('./command-line.ts')
  await runAgent(file)
}
