// One command: bookmarks that are summed up in the background, on a page that also works offline.
import { join, resolve } from 'node:path'
import { startApp } from './app.ts'
import { pageFiles } from './page-files.ts'

const say = (line: string) => process.stdout.write(`${line}\n`)

function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const isTaken = 'code' in error && error.code === 'EADDRINUSE'
  return isTaken ? `Port ${PORT} is in use. Stop what uses it, or name another one: PORT=8007` : error.message
}

const folder = resolve(process.argv[2] ?? join(import.meta.dirname, 'data'))
/** The same each time: to a browser another port is another site, without what was kept offline. */
const PORT = Number(process.env.PORT ?? 8006)

const stopped = new Promise<void>((stop) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop())
})

try {
  const app = await startApp({
    folder,
    port: PORT,
    files: await pageFiles(),
    onTrouble: (error) => say(`Trouble: ${messageOf(error)}`),
  })
  say(`Save a page: ${app.url}\nCtrl-C stops it.`)
  await stopped
  await app.close()
  say('Stopped.')
  // A name that is still being looked up would keep the process for as long as the resolver takes.
  process.exit()
} catch (error) {
  say(messageOf(error))
  process.exitCode = 1
}
