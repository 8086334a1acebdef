import type { LeaseShape } from '@ichido/sdk/protocol'
import { expect, test } from 'vitest'
import { cancelJob } from '../../store/jobs/cancel-or-delete.ts'
import type { Report } from '../../store/runs/finish-runs.ts'
import { eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { silentMeter } from '../system/meter.ts'
import type { LeaseRequest } from './runs.ts'

const RESULT_MAX = 1_000
/** Longer than any test, so that a missing event fails the test. */
const FOREVER_MS = 600_000
const ended: string[] = []
const meter = { ...silentMeter, ended: (state: string) => void ended.push(state) }

function finish(changes: Partial<Extract<Report, { verb: 'finish' }>> = {}): Report {
  return {
    verb: 'finish',
    result: '{"a":1,"b":2}',
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
    ...changes,
  }
}

eachServices(
  ({ services, submit }) => {
    const runs = () => services().runs
    const queue = () => unique('queue')
    const asks = (queues: string[], changes: Partial<LeaseRequest> = {}): LeaseRequest => ({
      queues,
      kinds: ['work'],
      max: 1,
      waitMs: 0,
      ...changes,
    })

    /** A run that the worker has started. */
    async function running(input: object = {}, worker = 'w'): Promise<LeaseShape> {
      const q = queue()
      await submit(LOCAL_ADMIN, { queue: q, ...input })
      const [lease] = await runs().lease(worker, asks([q], { startId: 'p' }))
      if (lease === undefined) throw new Error('There should be a run to lease')
      return lease
    }

    test('a lease has everything that a worker needs', async () => {
      const q = queue()
      const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
      const times = { lease_ttl_seconds: 7, continuation_seconds: 9, timeout_seconds: 11 }
      const plain = await submit(LOCAL_ADMIN, { queue: q, payload: { n: [1] } })
      const timed = await submit(LOCAL_ADMIN, { queue: q, traceparent, ...times })
      const [first, second] = await runs().lease('w', asks([q], { max: 5 }))
      expect(first).toEqual({
        job_id: plain,
        run_id: expect.any(String),
        attempt: 1,
        lease_id: expect.stringContaining('.'),
        version: 2,
        leader_epoch: null,
        queue: q,
        kind: 'work',
        payload: { n: [1] },
        lease_ttl_seconds: 60,
        continuation_seconds: 60,
        timeout_seconds: null,
        traceparent: null,
        stages: null,
        artifacts: [],
        last_progress: null,
      })
      expect(second).toMatchObject({ job_id: timed, payload: null, traceparent, ...times })
    })

    test('queues are leased in order, up to the maximum in all', async () => {
      const [a, b] = [queue(), queue()]
      for (const q of [b, a, b, a, a]) await submit(LOCAL_ADMIN, { queue: q })
      const leases = await runs().lease('w', asks([a, b], { max: 4 }))
      expect(leases.map((lease) => lease.queue)).toEqual([a, a, a, b])
      expect(await runs().lease('w', asks([a, b], { max: 4, kinds: ['other'] }))).toEqual([])
      expect(await runs().lease('w', asks([a, b], { max: 4 }))).toHaveLength(1)
    })

    test('a repeated poll gets the same leases, without another attempt', async () => {
      const q = queue()
      const [id] = [await submit(LOCAL_ADMIN, { queue: q }), await submit(LOCAL_ADMIN, { queue: q })]
      const poll = asks([q], { pollId: unique('poll'), startId: 'p' })
      const first = await runs().lease('w', poll)
      expect(first).toMatchObject([{ job_id: id, attempt: 1 }])
      expect(await runs().lease('w', poll)).toEqual(first)
      expect(await runs().lease('other', poll)).not.toEqual(first)
    })

    test('a waiting poll gets work when it comes', async () => {
      const q = queue()
      const waiting = runs().lease('w', asks([q], { waitMs: 30_000 }))
      const id = await submit(LOCAL_ADMIN, { queue: q })
      expect(await waiting).toMatchObject([{ job_id: id }])
    })

    test('one job goes to one of many waiting polls', async () => {
      const q = queue()
      const gone = new AbortController()
      const waiting = Array.from({ length: 10 }, (_, i) =>
        runs().lease(`w${i}`, asks([q], { waitMs: 30_000 }), gone.signal),
      )
      await submit(LOCAL_ADMIN, { queue: q })
      await Promise.race(waiting)
      gone.abort()
      expect((await Promise.all(waiting)).flat()).toHaveLength(1)
    })

    test('a disconnected poll gets nothing', async () => {
      const q = queue()
      const gone = new AbortController()
      const waiting = runs().lease('w', asks([q], { waitMs: 30_000 }), gone.signal)
      gone.abort()
      expect(await waiting).toEqual([])
      const id = await submit(LOCAL_ADMIN, { queue: q })
      expect(await runs().lease('w', asks([q], { waitMs: 30_000 }), gone.signal)).toEqual([])
      expect(await services().jobs.get(LOCAL_ADMIN, id)).toMatchObject({ state: 'PENDING', attempt: 0 })
    })

    test('only the same process can repeat a start', async () => {
      const q = queue()
      await submit(LOCAL_ADMIN, { queue: q })
      const [lease] = await runs().lease('w', asks([q]))
      const { lease_id = '', version } = lease ?? {}
      expect(await runs().start('w', lease_id, 'p', 9)).toEqual({ kind: 'refused', reason: 'VERSION_MISMATCH' })
      expect(await runs().start('other', lease_id, 'p')).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
      const started = await runs().start('w', lease_id, 'p', version)
      expect(started).toMatchObject({ kind: 'started', version: 3, attempt: 1, waitedMs: expect.any(Number) })
      const repeated = await runs().start('w', lease_id, 'p', version)
      expect({ ...started, ...repeated }).toEqual({ ...started, kind: 'repeated' })
      expect(repeated, 'counted once').not.toHaveProperty('waitedMs')
      expect(await runs().start('w', lease_id, 'other')).toEqual({ kind: 'refused', reason: 'NOT_ASSIGNED' })
    })

    test.each<[string, Report, Report, 'repeated' | 'refused']>([
      ['the same result', finish(), finish(), 'repeated'],
      ['its members in another order', finish(), finish({ result: '{ "b": 2.0, "a": 1 }' }), 'repeated'],
      ['another meta', finish({ meta: '{"t":1}' }), finish({ meta: '{"t":2}' }), 'repeated'],
      ['another cost', finish({ costMicros: 1 }), finish({ costMicros: 2 }), 'repeated'],
      ['another result', finish(), finish({ result: '{"a":1,"b":3}' }), 'refused'],
      ['another summary', finish(), finish({ summaryText: 'x' }), 'refused'],
      ['other frequencies', finish(), finish({ freqsCsv: 'x' }), 'refused'],
      ['a failure', finish(), { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true }, 'refused'],
    ])('a report again with %s', async (_, first, second, kind) => {
      const { lease_id, job_id } = await running()
      ended.length = 0
      expect(await runs().finish('w', lease_id, first)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
      const expected = kind === 'refused' ? { kind, reason: 'OUTCOME_ALREADY_RECORDED' } : { kind, jobId: job_id }
      expect(await runs().finish('w', lease_id, second)).toMatchObject(expected)
      expect(ended).toEqual(['SUCCEEDED'])
      expect(await services().jobs.result(LOCAL_ADMIN, job_id, 0)).toMatchObject({ result: { a: 1, b: 2 } })
    })

    test('a repeated failure with another traceback makes no second run', async () => {
      const { lease_id, job_id } = await running()
      const fail = (message: string, traceback: string): Report => ({
        verb: 'fail',
        error: { code: 'C', message, traceback },
        retryable: true,
      })
      expect(await runs().finish('w', lease_id, fail('m', 'one'))).toMatchObject({ kind: 'recorded', dead: false })
      expect(await runs().finish('w', lease_id, fail('m', 'two'))).toMatchObject({ kind: 'repeated' })
      expect(await runs().finish('w', lease_id, fail('n', 'one'))).toMatchObject({ kind: 'refused' })
      expect((await services().jobs.get(LOCAL_ADMIN, job_id)).runs).toHaveLength(2)
    })

    test('a long failure is cut, and its repeat in full is the same', async () => {
      const { lease_id, job_id } = await running()
      const fail = (message: string): Report => ({
        verb: 'fail',
        error: { code: 'C', message, traceback: 't'.repeat(5 * 1024 * 1024) },
        retryable: false,
      })
      const long = 'm'.repeat(20_000)
      expect(await runs().finish('w', lease_id, fail(long))).toMatchObject({ kind: 'recorded', dead: true })
      expect(await runs().finish('w', lease_id, fail(long))).toMatchObject({ kind: 'repeated' })
      expect(await runs().finish('w', lease_id, fail(`${long}!`))).toMatchObject({ kind: 'refused' })
      const message = `${'m'.repeat(9_999)}…`
      const { error, runs: all } = await services().jobs.get(LOCAL_ADMIN, job_id)
      expect(error).toEqual({ code: 'C', message, traceback: `${'t'.repeat(49_999)}…` })
      expect(all.at(-1)?.error).toEqual(error)
      expect(await services().deadLetters.get(LOCAL_ADMIN, job_id)).toMatchObject({ error_message: message })
    })

    test('concurrent reports of one run are recorded once', async () => {
      const { lease_id, job_id } = await running()
      const reports = await Promise.all(Array.from({ length: 20 }, () => runs().finish('w', lease_id, finish())))
      expect(reports.filter(({ kind }) => kind === 'recorded')).toHaveLength(1)
      expect(reports.filter(({ kind }) => kind === 'repeated')).toHaveLength(19)
      expect(await services().jobs.get(LOCAL_ADMIN, job_id)).toMatchObject({ state: 'SUCCEEDED' })
    })

    test('only the holder can report, with the right version and epoch', async () => {
      const { lease_id, version, leader_epoch } = await running()
      const refused = (reason: string) => ({ kind: 'refused', reason })
      const epoch = leader_epoch ?? -1
      expect(await runs().finish('other', lease_id, finish())).toEqual(refused('LEASE_LOST'))
      const forged = `${lease_id.split('.')[0]}.${'A'.repeat(22)}`
      expect(await runs().finish('w', forged, finish())).toEqual(refused('LEASE_LOST'))
      expect(await runs().finish('w', lease_id, finish(), { version: version + 1 })).toEqual(
        refused('VERSION_MISMATCH'),
      )
      expect(await runs().finish('w', lease_id, finish(), { leaderEpoch: epoch + 1 })).toEqual(
        refused('EPOCH_MISMATCH'),
      )
      expect(await runs().finish('w', lease_id, finish(), { version, leaderEpoch: epoch })).toMatchObject({
        kind: 'recorded',
      })
    })

    test('a bad lease id is not found', async () => {
      for (const lease of ['', 'x', '01890000-0000-7000-8000-000000000000', `${'x'.repeat(36)}.y`]) {
        const calls = [runs().start('w', lease, 'p'), runs().heartbeat('w', lease), runs().finish('w', lease, finish())]
        for (const error of await Promise.all(calls.map(thrownBy))) expect(error).toMatchObject({ code: 'NOT_FOUND' })
      }
      const unknown = '01890000-0000-7000-8000-000000000000.AAAAAAAAAAAAAAAAAAAAAA'
      expect(await runs().heartbeat('w', unknown)).toEqual({ kind: 'refused', reason: 'NOT_FOUND' })
    })

    test('a result is limited in bytes, all its parts together', async () => {
      const { lease_id, job_id } = await running()
      const text = (bytes: number) => JSON.stringify('é'.repeat((bytes - 2) / 2))
      const tooLarge = [
        finish({ result: text(RESULT_MAX + 2) }),
        finish({ result: text(500), summaryText: 'x'.repeat(250), meta: 'x'.repeat(251) }),
      ]
      for (const report of tooLarge) {
        const error = await thrownBy(runs().finish('w', lease_id, report))
        expect(error).toMatchObject({ code: 'PAYLOAD_TOO_LARGE', message: 'The result is larger than 1000 bytes' })
      }
      expect(await services().jobs.get(LOCAL_ADMIN, job_id)).toMatchObject({ state: 'RUNNING' })
      expect(await runs().finish('w', lease_id, finish({ result: text(RESULT_MAX) }))).toMatchObject({
        kind: 'recorded',
      })
    })

    test('a call that waits for the result gets it at the end', async () => {
      const { lease_id, job_id } = await running()
      const result = services().jobs.result(LOCAL_ADMIN, job_id, 30_000)
      const before = await thrownBy(services().jobs.result(LOCAL_ADMIN, job_id, 0))
      expect(before).toMatchObject({ code: 'RESULT_NOT_READY', details: { state: 'RUNNING' } })
      const report = finish({ summaryText: 'sum', freqsCsv: '1,2', meta: '{"host":"h"}', costMicros: 2_500_000 })
      await runs().finish('w', lease_id, report)
      expect(await result).toEqual({
        job_id,
        state: 'SUCCEEDED',
        result: { a: 1, b: 2 },
        summary_text: 'sum',
        freqs_csv: '1,2',
        meta: { host: 'h' },
        cost: 2.5,
        finished_at: expect.any(String),
      })
    })

    test('an attempt gets the last progress of earlier attempts, not its own', async () => {
      const first = await running({ backoff: { base_seconds: 0 } })
      expect(first.last_progress).toBeNull()
      const { queue: q, job_id } = first
      for (const percent of [10, 40]) {
        await services().events.publish('w', first.lease_id, { stage: 'progress', seq: percent, data: { percent } })
      }
      await services().events.publish('w', first.lease_id, { stage: 'other', seq: 9, data: 'other' })
      await runs().finish('w', first.lease_id, {
        verb: 'fail',
        error: { code: 'C', message: 'm' },
        retryable: true,
      })
      const poll = asks([q], { pollId: unique('poll'), startId: 'p' })
      const [second] = await runs().lease('w', poll)
      expect(second).toMatchObject({ job_id, attempt: 2, last_progress: { percent: 40 } })
      await services().events.publish('w', second?.lease_id ?? '', { stage: 'progress', seq: 1, data: { percent: 50 } })
      expect(await runs().lease('w', poll)).toEqual([second])
    })

    test('with stages an attempt gets the last event of any stage', async () => {
      const first = await running({ backoff: { base_seconds: 0 }, stages: 'eco2' })
      // The last event is late, with a lower seq.
      for (const [stage, seq] of [
        ['vision', 10],
        ['answer', 31],
        ['answer', 30],
      ] as const) {
        await services().events.publish('w', first.lease_id, { stage, seq, data: { seq } })
      }
      const failure = { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true } as const
      await runs().finish('w', first.lease_id, failure)
      const [second] = await runs().lease('w', asks([first.queue], { startId: 'p' }))
      expect(second).toMatchObject({ job_id: first.job_id, attempt: 2, last_progress: { seq: 30 } })
    })

    test('leases and starts wake readers, and releases wake polls', async () => {
      const q = queue()
      const jobId = await submit(LOCAL_ADMIN, { queue: q, backoff: { base_seconds: 0 } })
      const woken: string[] = []
      const { bus } = services().deps
      bus.subscribe(`job:${jobId}`, () => woken.push('job'))
      bus.subscribe(`queue:${q}`, () => woken.push('queue'))
      const heard = () => woken.splice(0).sort()
      const leaseOne = async (startId?: string) => {
        const [lease] = await runs().lease('w', asks([q], { startId }))
        if (lease === undefined) throw new Error('There should be a run to lease')
        return lease.lease_id
      }
      const first = await leaseOne()
      expect(heard()).toEqual(['job'])
      await runs().release('w', first)
      expect(heard()).toEqual(['job', 'queue'])
      const second = await leaseOne()
      await runs().start('w', second, 'p')
      expect(heard()).toEqual(['job', 'job'])
      await runs().release('w', second)
      expect(heard()).toEqual(['job', 'queue'])
      const third = await leaseOne('p')
      expect(heard()).toEqual(['job'])
      await runs().finish('w', third, { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true })
      expect(heard(), 'a retry without a delay').toEqual(['job', 'queue'])
      await services().queues.put(LOCAL_ADMIN, q, { maxConcurrent: 1 })
      heard()
      await runs().finish('w', await leaseOne('p'), finish())
      expect(heard(), 'room in a queue with a limit').toEqual(['job', 'job', 'queue'])
    })

    test('a heartbeat extends the lease by the time of the job', async () => {
      const { lease_id, job_id } = await running({ lease_ttl_seconds: 3600 })
      const endsAt = async () => {
        const [run] = (await services().jobs.get(LOCAL_ADMIN, job_id)).runs
        return Date.parse(run?.lease_expires_at ?? '')
      }
      const first = await endsAt()
      const beat = async () => {
        expect(await runs().heartbeat('w', lease_id)).toMatchObject({ kind: 'extended', cancelRequested: false })
        return (await endsAt()) > first
      }
      await until('the clock to move on', beat)
      expect((await endsAt()) - first).toBeLessThan(60_000)
      await services().jobs.cancel(LOCAL_ADMIN, job_id)
      expect(await runs().heartbeat('w', lease_id)).toMatchObject({ kind: 'extended', cancelRequested: true })
    })

    test('a waiting worker hears of each run that must stop', async () => {
      const [worker, other] = [unique('worker'), unique('worker')]
      const held = await running({}, worker)
      const next = await running({}, worker)
      const known = [held.lease_id]
      const waiting = runs().cancels(worker, [], FOREVER_MS)
      await services().jobs.cancel(LOCAL_ADMIN, held.job_id)
      expect(await waiting).toEqual([held.lease_id])
      expect(await runs().cancels(worker, [], FOREVER_MS), 'who comes later').toEqual([held.lease_id])
      expect(await runs().cancels(worker, known, 0), 'what it knows').toEqual([])
      expect(await runs().cancels(other, [], 0), 'somebody else').toEqual([])
      const more = runs().cancels(worker, known, FOREVER_MS)
      await services().jobs.cancel(LOCAL_ADMIN, next.job_id)
      expect(await more).toEqual([held.lease_id, next.lease_id])
      await runs().finish(worker, held.lease_id, finish())
      expect(await runs().cancels(worker, [], FOREVER_MS), 'what has not stopped').toEqual([next.lease_id])
    })

    test('a new call finds a missed cancel, and a disconnected one ends', async () => {
      const worker = unique('worker')
      const { job_id, lease_id } = await running({}, worker)
      const gone = new AbortController()
      const waiting = runs().cancels(worker, [], FOREVER_MS, gone.signal)
      await services().deps.store.write(cancelJob(job_id))
      gone.abort()
      expect(await waiting).toEqual([])
      expect(await runs().cancels(worker, [], FOREVER_MS)).toEqual([lease_id])
    })
  },
  { meter, limits: { ...DEFAULT_LIMITS, resultBytesMax: RESULT_MAX } },
)
