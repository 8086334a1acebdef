import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  /** The value of a series of /metrics, by its name and labels. */
  async function metric(series: string): Promise<number | undefined> {
    const { text } = await http.call('GET', '/metrics')
    const line = text.split('\n').find((found) => found.startsWith(`${series} `))
    return line === undefined ? undefined : Number(line.slice(series.length + 1))
  }

  /** Slow counts are cached for up to five seconds, as on a busy machine. */
  const shown = <T>(read: () => Promise<T>) => expect.poll(read, { timeout: 20_000 })

  const submit = (input: object = {}) =>
    http.services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue: 'q', ...input }, { key: null })
  async function lease() {
    const [found] = await http.services.runs.lease('w', { queues: ['q'], kinds: [], max: 1, waitMs: 0, startId: 'p' })
    if (found === undefined) throw new Error('There should be a run to lease')
    return found.lease_id
  }
  const fail = { verb: 'fail', error: { code: 'X', message: 'no' }, retryable: true } as const
  const finish = {
    verb: 'finish',
    result: '1',
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
  } as const

  test('queues, leases, waits, run times, retries and fenced writes', async () => {
    const { runs } = http.services
    await submit({ backoff: { base_seconds: 0 } })
    await submit()
    await submit({ delay_seconds: 60 })
    const first = await lease()
    await shown(() => metric('ichido_queue_ready{queue="q"}')).toBe(1)
    await shown(() => metric('ichido_queue_delayed{queue="q"}')).toBe(1)
    await shown(() => metric('ichido_queue_active_leases{queue="q"}')).toBe(1)
    await shown(() => metric('ichido_queue_oldest_ready_seconds{queue="q"}')).toBeGreaterThanOrEqual(0)

    expect(await runs.finish('w', first, fail)).toMatchObject({
      kind: 'recorded',
      tookMs: expect.any(Number),
    })
    await runs.finish('w', await lease(), { ...finish, result: 'null' })
    await runs.finish('w', await lease(), finish)
    await runs.heartbeat('w', first)
    await runs.finish('w', first, finish)

    expect(await metric('ichido_run_wait_seconds_count{queue="q",kind="work"}')).toBe(3)
    expect(await metric('ichido_run_seconds_count{state="SUCCEEDED",queue="q",kind="work"}')).toBe(2)
    expect(await metric('ichido_run_seconds_count{state="FAILED",queue="q",kind="work"}')).toBe(1)
    expect(await metric('ichido_runs_ended_total{state="SUCCEEDED",queue="q",kind="work"}')).toBe(2)
    expect(await metric('ichido_retried_runs_ended_total{state="SUCCEEDED"}')).toBe(1)
    expect(await metric('ichido_retries_total{by="policy"}')).toBe(1)
    expect(await metric('ichido_fenced_writes_total{verb="heartbeat",reason="ALREADY_ENDED"}')).toBe(1)
    expect(await metric('ichido_fenced_writes_total{verb="finish",reason="OUTCOME_ALREADY_RECORDED"}')).toBe(1)
  })

  test('whether a queue is paused, and its limit', async () => {
    const paused = () => metric('ichido_queue_paused{queue="held"}')
    const limit = () => metric('ichido_queue_limit{queue="held"}')
    await submit({ queue: 'held' })
    await shown(async () => [await paused(), await limit()]).toEqual([0, undefined])
    await http.call('PUT', '/v1/queues/held', { body: { paused: true, max_concurrent: 3 } })
    await shown(async () => [await paused(), await limit()]).toEqual([1, 3])
    // Runs of a paused queue are due, too. An alert on them must look at the pause.
    await shown(() => metric('ichido_queue_ready{queue="held"}')).toBe(1)
    await http.call('PUT', '/v1/queues/held', { body: { paused: false, max_concurrent: null } })
    await shown(async () => [await paused(), await limit()]).toEqual([0, undefined])
  })

  test('dead letters by queue, the age of the oldest, and redrives that run', async () => {
    const { redrives } = http.services
    const found = async () => [
      await metric('ichido_dead_letters{queue="q"}'),
      await metric('ichido_dead_letters{queue="other"}'),
      await metric('ichido_operations_running'),
    ]
    await shown(found).toEqual([undefined, undefined, 0])
    const broken = { ...fail, retryable: false }
    for (const queue of ['q', 'q', 'other']) {
      await submit({ queue })
      const request = { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: 'p' }
      const [leased] = await http.services.runs.lease('w', request)
      await http.services.runs.finish('w', leased?.lease_id ?? '', broken)
    }
    await shown(found).toEqual([2, 1, 0])
    await shown(() => metric('ichido_dead_letter_oldest_seconds{queue="q"}')).toBeGreaterThanOrEqual(0)
    const { deadLetters } = http.services
    const [parked] = (await deadLetters.list(LOCAL_ADMIN, { ...EVERY_DEAD_LETTER, queue: 'q' }, 1, null)).data
    await deadLetters.retry(LOCAL_ADMIN, parked?.job_id ?? '')
    await http.services.jobs.cancel(LOCAL_ADMIN, parked?.job_id ?? '')
    expect(await metric('ichido_runs_ended_total{state="CANCELED",queue="q",kind="work"}')).toBe(1)
    await deadLetters.replace(LOCAL_ADMIN, parked?.job_id ?? '', 2, 'again')
    await deadLetters.replace(LOCAL_ADMIN, parked?.job_id ?? '', 2, 'again')
    expect(await metric('ichido_retries_total{by="person"}')).toBe(2)
    await shown(found).toEqual([1, 1, 0])
    // There is no leader here, so the redrive keeps running.
    const choice = { jobIds: null, filter: { ...EVERY_DEAD_LETTER, queue: 'other' } }
    await redrives.begin(LOCAL_ADMIN, choice, null)
    await shown(found).toEqual([1, 1, 1])
  })

  test('retried calls of clients, by their outcome', async () => {
    for (const [path, attempts] of [
      ['/v1/jobs', ['1', '2', '3']],
      ['/v1/jobs/none', ['1', '2']],
      ['/v1/queues', ['0', '-2', 'many', '']],
    ] as const) {
      for (const attempt of attempts) await http.call('GET', path, { headers: { 'ichido-attempt': attempt } })
    }
    await http.call('GET', '/v1/jobs')
    expect(await metric('ichido_client_retries_total{outcome="succeeded"}')).toBe(2)
    expect(await metric('ichido_client_retries_total{outcome="failed"}')).toBe(1)
  })
})
