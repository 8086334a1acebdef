import { Client, type HttpOptions, httpTransport } from '@ichido/sdk'
import { nodeTooOld } from '../core/node/node.ts'
import { CLOSED, type Ichido, type OpenOptions, submitting } from './api.ts'

/**
 * Opens a folder, a database or a server. A folder belongs to one process; a database is shared by many.
 *
 * @example
 * const ichido = await open({ dataDir: './data' })
 * const job = await ichido.submit('resize', { url: 'https://example.com/a.png' }, { key: 'thumb-1' })
 * const result = await job.result()
 * await ichido.close()
 */
export async function open(options: OpenOptions): Promise<Ichido> {
  if ('url' in options) return overHttp(options)
  const tooOld = nodeTooOld(process.versions.node)
  if (tooOld !== null) throw new Error(tooOld)
  if (!['dataDir', 'pool', 'databaseUrl'].some((name) => Object.hasOwn(options, name) && options[name as never])) {
    throw new TypeError('open() needs one of dataDir, pool, databaseUrl or url; all of them are missing or undefined')
  }
  if ('databaseUrl' in options && !('pool' in options) && !/^postgres(ql)?:\/\//.test(options.databaseUrl)) {
    throw new TypeError('databaseUrl must be an address like postgres://user:password@host/database')
  }
  // The engine is ten times as much code as the rest, so only a process that opens a store loads it.
  const { openStore } = await import('./embed.ts')
  return openStore(options)
}

function overHttp({ url, token, retry, world }: HttpOptions): Ichido {
  if (!/^https?:\/\//.test(url))
    throw new TypeError(`url must begin with http:// or https://, but is ${JSON.stringify(url)}`)
  let closed = false
  const send: typeof fetch = async (...request) => {
    if (closed) throw new Error(CLOSED)
    return fetch(...request)
  }
  const client = new Client(httpTransport({ url, token, retry, world, fetch: send }))
  return {
    ...submitting(client),
    handle() {
      throw new TypeError('Handlers need a store in this process: open({ dataDir }) or open({ pool })')
    },
    async close() {
      closed = true
    },
  }
}
