import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { isMainThread, workerData } from 'node:worker_threads'

/** The one program that an agent is: itself, the supervisor of each of its runs, and the thread of its heartbeats. */
const file = fileURLToPath(import.meta.url)

if (!isMainThread && workerData?.role === 'heart') {
  const { beatInThread } = await import('./heartbeat/heartbeat-thread-main.ts')
  beatInThread(workerData)
} else if (process.argv[2] === 'supervise') {
  const { supervise } = await import('./process/supervisor.ts')
  supervise()
} else if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === file) {
  const { runAgent } = await import('./process/run.ts')
  await runAgent(file)
}
