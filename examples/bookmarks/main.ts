// One command starts bookmarks that are summarised in the background, on a page that also works offline.
import { join, resolve } from 'node:path'
import { BadPort, portFrom, portTaken } from '../port.ts'
import { startApp } from './app.ts'
import { pageFiles } from './page-files.ts'

const say = (line: string) => process.stdout.write(`${line}\n`)

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error))

const folder = resolve(process.argv[2] ?? join(import.meta.dirname, 'data'))
/** Always the same port: to a browser, another port is another site without the data that was stored offline. */
const PORT = 8006

const stopped = new Promise<void>((stop) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop())
})

try {
  const port = portFrom(process.env, PORT)
  const onTrouble = (error: unknown) => say(`Trouble: ${messageOf(error)}`)
  const app = await startApp({ folder, port, files: await pageFiles(), onTrouble }).catch((error: unknown) => {
    throw new Error(portTaken(error, port) ?? messageOf(error))
  })
  say(`Save a page: ${app.url}\nCtrl-C stops it.`)
  await stopped
  await app.close()
  say('Stopped.')
  // A pending DNS lookup would keep the process running until the resolver gives up.
  process.exit()
} catch (error) {
  say(messageOf(error))
  process.exitCode = error instanceof BadPort ? 2 : 1
}
