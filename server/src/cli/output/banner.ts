import { resolve } from 'node:path'
import { DEFAULT_DATA_DIR, DEFAULT_URL, isLoopback, type ServerConfig, type StoreConfig } from '../../node/config.ts'
import type { RunningServer } from '../../node/start-server.ts'
import { pooling } from '../connection/store.ts'
import { commandLine, VERSION } from '../self.ts'
import { paint, say } from './terminal.ts'

/** Prints the address, the credentials, the store and a first command. */
export function sayRunning(server: RunningServer, config: ServerConfig, localWorker: boolean): void {
  const { url, open, location, pooled } = server
  const line = (rest: string) => commandLine(rest, url === DEFAULT_URL ? {} : { ICHIDO_URL: url })
  const lines: [string, string[]][] = [
    ...reachedAt(server, config),
    ['Credentials', open ? openMode(config, tokenLine(config, url)) : ['tokens are required']],
    ['Store', [`${'dataDir' in config.storage ? 'SQLite' : 'PostgreSQL'}, ${location}`]],
  ]
  if (!('dataDir' in config.storage)) {
    const { message, advice } = pooling(pooled, config.storage)
    lines.push(['Connections', [advice === undefined ? message : `${message}. ${advice}`]])
  }
  if (localWorker) {
    lines.push(['Worker', ['a local worker for the queue demo']])
    lines.push(['Try it', [`${open ? '' : 'ICHIDO_TOKEN=… '}${line('demo')}`]])
  }
  say(`${paint('green', 'Ichido')} ${VERSION} is running at ${paint('bold', url)}\n`)
  for (const [name, [first, ...rest]] of lines) {
    say(`  ${paint('bold', name.padEnd(12))}${first}`)
    for (const text of rest) say(`${' '.repeat(14)}${text}`)
  }
  say('\nCtrl-C stops it.')
}

/** The addresses for other machines. */
function reachedAt({ url, publicUrl }: RunningServer, { host }: ServerConfig): [string, string[]][] {
  const lines: [string, string[]][] = []
  if (publicUrl !== null) lines.push(['Public', [publicUrl]])
  if (isLoopback(host)) return lines
  const where = ['0.0.0.0', '::'].includes(host) ? 'every address of this machine' : host
  return [...lines, ['Listens', [`on ${where}, port ${portOf(url)}`]]]
}

/** A URL omits the default port. */
function portOf(url: string): string {
  const { port, protocol } = new URL(url)
  return port || (protocol === 'https:' ? '443' : '80')
}

function openMode({ allowedOrigins }: ServerConfig, createToken: string): string[] {
  return [
    `${paint('yellow', 'OPEN MODE')}: no token exists yet, so every user of this machine may do everything.`,
    'After you make a token, every call needs one. This cannot be undone:',
    createToken,
    ...(allowedOrigins === null ? [] : ['ALLOWED_ORIGINS has no effect until then.']),
  ]
}

/** The command that makes a token in the store of this configuration. */
export function tokenLine({ storage }: StoreConfig, url = DEFAULT_URL): string {
  const rest = 'token create --user admin --role admin'
  if (!('dataDir' in storage)) return `${commandLine(rest)}   (with the same DATABASE_URL)`
  const folder = storage.dataDir === resolve(DEFAULT_DATA_DIR) ? {} : { DATA_DIR: storage.dataDir }
  return commandLine(rest, { ...folder, ...(url === DEFAULT_URL ? {} : { ICHIDO_URL: url }) })
}

export function sayStopped(): void {
  say('Stopped.')
}
