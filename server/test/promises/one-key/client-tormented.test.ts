import { Client, httpTransport } from '@ichido/sdk/client'
import { platformTimers } from '@ichido/sdk/world'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { seeded } from '../../../../scripts/testing/seeded.ts'
import { full, size } from '../../../../scripts/testing/size.ts'
import { TormentProxy } from '../../../../scripts/testing/torment-proxy.ts'
import { TIMEOUT_MS } from '../../../../sdk/src/client/retry.ts'
import { type TestApp, testApp } from '../../../src/testing/http/app.ts'
import { ENGINES } from '../../../src/testing/services/services.ts'

const SUBMITS = size(150, 2_000)
const AT_ONCE = 25
const SEED = 20_31
/** Speeds up the client's timers: a second takes ten milliseconds. */
const HASTE = 100
/** The timeout of a try. Only a hanging try needs it: even a busy machine answers the others earlier. */
const TRY_MS = 5_000

describe.each(full ? ENGINES : (['sqlite'] as const))('%s', (engine) => {
  let http: TestApp
  let proxy: TormentProxy
  beforeAll(async () => {
    http = await testApp(engine)
    const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
    proxy = await TormentProxy.before(url, { random: seeded(SEED), share: 0.5, pauseMs: 60 })
  })
  afterAll(async () => {
    proxy.close()
    await http.close()
  })

  async function metric(series: string): Promise<number> {
    const { text } = await http.call('GET', '/metrics')
    const line = text.split('\n').find((found) => found.startsWith(`${series} `))
    return Number(line?.slice(series.length + 1) ?? 0)
  }

  test(`${SUBMITS} submits over a network that fails in many ways create as many jobs`, async () => {
    const retries: unknown[] = []
    const client = new Client(
      httpTransport({
        url: proxy.url,
        retry: { tries: 40, onRetry: ({ error }) => void retries.push(error) },
        world: {
          random: seeded(SEED + 1),
          after: (ms, callback) => platformTimers.after(ms === TIMEOUT_MS ? TRY_MS : ms / HASTE, callback),
        },
      }),
    )
    const ids: string[] = []
    let replays = 0
    const left = Array.from({ length: SUBMITS }, (_, n) => n)
    const submitAll = async () => {
      for (let n = left.pop(); n !== undefined; n = left.pop()) {
        // The payload is always the same, so only the keys distinguish the submissions.
        const job = await client.submit('tormented', null, n % 2 === 0 ? {} : { key: `given-${n}` })
        ids.push(job.id)
        if (job.replayed) replays++
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, submitAll))
    await proxy.settled()

    expect(new Set(ids).size).toBe(SUBMITS)
    const jobs = await http.services.jobs.counts('all')
    expect(jobs).toEqual({ PENDING: SUBMITS })
    const { pass, ...torments } = proxy.counts
    console.log(`${SUBMITS} submits on ${engine}: ${retries.length} tries more, ${replays} replays`, proxy.counts)
    for (const [what, times] of Object.entries(torments)) expect(times, what).toBeGreaterThan(0)
    expect(replays).toBeGreaterThan(0)
    expect(await metric('ichido_submits_total{outcome="created",keyed="true"}')).toBe(SUBMITS)
    expect(await metric('ichido_idempotency_keys_total{result="mismatch"}')).toBe(0)
    expect(await metric('ichido_client_retries_total{outcome="succeeded"}')).toBeGreaterThan(0)
  }, 300_000)
})
