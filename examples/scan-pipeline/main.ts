// One command starts a control plane, a worker and a page on which a scan goes through its five stages.
import { join, resolve } from 'node:path'
import { BadPort } from '../port.ts'
import { startPipeline } from './pipeline.ts'

const say = (line: string) => process.stdout.write(`${line}\n`)
const folder = resolve(process.argv[2] ?? join(import.meta.dirname, 'data'))

const over = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => over.abort())

function fail(error: unknown): void {
  if (!over.signal.aborted) {
    say(error instanceof Error ? error.message : String(error))
    process.exitCode = error instanceof BadPort ? 2 : 1
  }
  over.abort()
}

try {
  const { url, stopped } = await startPipeline({ folder, signal: over.signal, say, failed: fail })
  if (!over.signal.aborted) say(`\nScan something: ${url}\nCtrl-C stops everything.`)
  await stopped
  say('Stopped.')
} catch (error) {
  fail(error)
}
