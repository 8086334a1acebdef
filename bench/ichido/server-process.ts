import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { z } from 'zod'
import { storageOf } from '../contest/contestant.ts'

/** The arguments of Node that start the command line of Ichido from its sources. */
export const FROM_SOURCES: readonly string[] = [
  '--conditions=ichido-source',
  fileURLToPath(new URL('../../server/src/cli/bin.ts', import.meta.url)),
]
const announcement = z.object({ url: z.string() })
const STOP_WITHIN_MS = 5_000

export interface ServerProcess {
  url: string
  pid: number
  stop(): Promise<void>
}

/** Starts `ichido serve` on a database or a folder, as users do. */
export async function serve(
  storeUrl: string,
  env: Readonly<Record<string, string>> = {},
  program: readonly string[] = FROM_SOURCES,
): Promise<ServerProcess> {
  const storage = storageOf(storeUrl)
  const store = 'dataDir' in storage ? { DATA_DIR: storage.dataDir } : { DATABASE_URL: storage.databaseUrl }
  const child = spawn(process.execPath, [...program, 'serve', '--json'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, HOST: '127.0.0.1', PORT: '0', ...store, LOG_LEVEL: 'error', ...env },
  })
  let said = ''
  child.stderr.on('data', (chunk) => {
    said += chunk
  })
  const kill = () => child.kill('SIGKILL')
  process.once('exit', kill)
  const exited = once(child, 'exit')
  const line = once(createInterface({ input: child.stdout }), 'line')
  const first = await Promise.race([line, exited.then(() => [null])])
  if (first[0] === null) throw new Error(`The server did not start:\n${said}`)
  const { url } = announcement.parse(JSON.parse(String(first[0])))
  return {
    url,
    pid: child.pid ?? 0,
    async stop() {
      child.kill('SIGTERM')
      const timer = setTimeout(kill, STOP_WITHIN_MS)
      await exited
      clearTimeout(timer)
      process.off('exit', kill)
    },
  }
}
