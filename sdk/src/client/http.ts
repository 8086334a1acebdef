import { platformWorld } from '../world.ts'
import { createCall, createOpen, type HttpOptions } from './call.ts'
import type { Transport } from './transport.ts'
import { watchEvents } from './watch.ts'

/** The control plane over HTTP. */
export function httpTransport(options: HttpOptions): Transport {
  const call = createCall(options)
  const open = createOpen(options)
  const world = { ...platformWorld, ...options.world }
  return {
    async submit(request, { key, tx }) {
      if (tx !== undefined) throw new TypeError('tx works in process only: open({ pool }), not open({ url })')
      // In the body, where every key can be written: a header takes no quote at its beginning, and ASCII only.
      const keyed = key === undefined ? request : { ...request, idempotency_key: key }
      const { body, response } = await call('POST', '/v1/jobs', { body: keyed })
      return { response: body as never, replayed: response.headers.get('idempotent-replayed') === 'true' }
    },
    get: async (jobId) => (await call('GET', pathOf(jobId))).body as never,
    list: async (filter) => (await call('GET', `/v1/jobs?${query(filter)}`)).body as never,
    cancel: async (jobId) => (await call('POST', `${pathOf(jobId)}/cancel`)).body as never,
    async result(jobId, waitMs, signal) {
      const path = `${pathOf(jobId)}/result?wait_seconds=${Math.floor(waitMs / 1000)}`
      return (await call('GET', path, signal ? { signal } : {})).body as never
    },
    watch: (jobId, watchOptions) => watchEvents(open, world, `${pathOf(jobId)}/events`, watchOptions),
  }
}

function pathOf(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`
}

function query(filter: object): string {
  const entries = Object.entries(filter).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, String(value)]],
  )
  return new URLSearchParams(entries as [string, string][]).toString()
}
