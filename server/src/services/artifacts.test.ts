import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import type { AwaitedArtifactShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Blobs } from '../blobs/port.ts'
import { UNUSED_ARTIFACT_TTL_MS } from '../core/artifact.ts'
import type { SubmitInput } from '../core/contract/submit.ts'
import type { Caller } from '../core/roles.ts'
import { createExpireUploads, createTidyArtifacts } from '../leader/tidy-artifacts.ts'
import { promoteDue } from '../store/commands/promote-runs.ts'
import { chunksOf, sha256Of, someBytes, testBlobs, uploadRequest } from '../testing/artifacts.ts'
import { callerOf } from '../testing/each-services.ts'
import { ENGINES, testServices } from '../testing/services.ts'
import { sql, unique } from '../testing/store.ts'
import { LOCAL_ADMIN } from './access.ts'
import { DEFAULT_LIMITS } from './deps.ts'
import type { Services } from './index.ts'

const BYTES_MAX = 200_000

describe.each(ENGINES)('%s', (engine) => {
  let services: Services
  let blobs: Blobs
  let folder: string
  let close: () => Promise<void>
  beforeAll(async () => {
    const place = await testBlobs()
    const limits = { ...DEFAULT_LIMITS, artifactBytesMax: BYTES_MAX }
    const opened = await testServices(engine, { blobs: place.blobs, limits })
    ;({ blobs, folder } = place)
    services = opened.services
    close = async () => {
      await opened.close()
      place.remove()
    }
  })
  afterAll(() => close())

  const submitter = () => callerOf('submitter')
  const queue = () => unique('queue')

  async function submit(caller: Caller, artifacts: AwaitedArtifactShape[], input: Partial<SubmitInput> = {}) {
    const request = { kind: 'work', queue: queue(), ...input, artifacts }
    const outcome = await services.submission.submit(caller, request, { key: null })
    if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
    return outcome.jobId
  }
  const send = (caller: Caller, jobId: string | null, bytes: Uint8Array, changes = {}) =>
    services.artifacts.upload({ caller }, uploadRequest(bytes, { jobId, ...changes }))
  const job = (caller: Caller, jobId: string) => services.jobs.get(caller, jobId)

  async function leasable(jobId: string): Promise<boolean> {
    await services.deps.store.write(promoteDue(1_000, ({ runAtMs }) => runAtMs))
    const rows = await sql(
      services.deps.store,
      'SELECT fair_tag FROM ichido.runs WHERE job_id = $1 AND fair_tag IS NOT NULL',
      jobId,
    )
    return rows.length === 1
  }

  async function passDeadline(jobId: string, ms = 301_000) {
    await sql(
      services.deps.store,
      `UPDATE ichido.held_runs SET expires_at = expires_at - ${ms} WHERE job_id = $1`,
      jobId,
    )
  }
  const expire = () => createExpireUploads(services.deps)()
  const tidy = () => createTidyArtifacts({ ...services.deps, blobs })()
  const files = () =>
    (readdirSync(join(folder, 'blobs'), { recursive: true }) as string[]).filter((f) => f.includes('.'))
  const fileOf = (bytes: Uint8Array) => files().filter((file) => file.includes(sha256Of(bytes)))
  const uploads = () => readdirSync(join(folder, 'uploads'))

  describe('a job that waits for artifacts', () => {
    test('is held until the last of them is here, and then leased like any other', async () => {
      const [caller, a, b] = [submitter(), someBytes(100_000), someBytes(7)]
      const jobId = await submit(caller, [{ name: 'a' }, { name: 'b', sha256: sha256Of(b), size_bytes: 7 }])
      expect(await job(caller, jobId)).toMatchObject({ state: 'PENDING', awaits_artifacts: true })
      expect(await leasable(jobId)).toBe(false)

      expect(await send(caller, jobId, a, { name: 'a' })).toMatchObject({
        kind: 'ready',
        artifact: { name: 'a', job_id: jobId, run_id: null, sha256: sha256Of(a), size_bytes: 100_000, state: 'ready' },
      })
      expect(await job(caller, jobId)).toMatchObject({ awaits_artifacts: true })
      expect(await leasable(jobId)).toBe(false)

      expect(await send(caller, jobId, b, { name: 'b' })).toMatchObject({ kind: 'ready' })
      const released = await job(caller, jobId)
      expect(released).toMatchObject({ state: 'PENDING', awaits_artifacts: false })
      expect(await leasable(jobId)).toBe(true)
      expect(await services.artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'a' }, { name: 'b' }])
      expect(uploads()).toEqual([])

      const [lease] = await services.runs.lease('w', { queues: [released.queue], kinds: ['work'], max: 1, waitMs: 0 })
      expect(lease).toMatchObject({ job_id: jobId, artifacts: [{ name: 'a', size_bytes: 100_000 }, { name: 'b' }] })
    })

    test('waits for its time too, if it has one', async () => {
      const [caller, bytes] = [submitter(), someBytes(5)]
      const jobId = await submit(caller, [{ name: 'a' }], { delay_seconds: 3600 })
      const before = (await job(caller, jobId)).run_at
      await send(caller, jobId, bytes, { name: 'a' })
      expect(await job(caller, jobId)).toMatchObject({ awaits_artifacts: false, run_at: before })
      expect(await leasable(jobId)).toBe(false)
    })

    test('counts against the quota, and can be canceled', async () => {
      const caller = submitter()
      await services.quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: 1, cost_limit: null, period: 'month' })
      const jobId = await submit(caller, [{ name: 'a' }])
      await expect(submit(caller, [])).rejects.toThrow('Quota exceeded')
      await services.jobs.cancel(caller, jobId)
      expect(await job(caller, jobId)).toMatchObject({ state: 'CANCELED', awaits_artifacts: false })
      await expect(send(caller, jobId, someBytes(3), { name: 'a' })).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
      await submit(caller, [])
      expect(await services.artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'a', state: 'awaited' }])
    })

    test('takes nothing that it does not wait for', async () => {
      const caller = submitter()
      const jobId = await submit(caller, [{ name: 'a', sha256: sha256Of(someBytes(1)), size_bytes: 9 }])
      await expect(send(caller, jobId, someBytes(3), { name: 'b' })).rejects.toMatchObject({ code: 'NOT_FOUND' })
      await expect(send(caller, jobId, someBytes(8), { name: 'a', sizeBytes: 8 })).rejects.toMatchObject({
        code: 'INVALID_PAYLOAD',
        message: 'size_bytes is 8, but the job waits for 9',
      })
      await expect(send(caller, jobId, someBytes(10), { name: 'a' })).rejects.toMatchObject({ code: 'INVALID_PAYLOAD' })
      const wrong = someBytes(9)
      await expect(send(caller, jobId, wrong, { name: 'a' })).rejects.toMatchObject({ code: 'INVALID_PAYLOAD' })
      expect(fileOf(wrong)).toEqual([])
      expect(uploads()).toEqual([])
      expect(await job(caller, jobId)).toMatchObject({ awaits_artifacts: true })
    })

    test('whose upload stops is canceled, and gives its slot and its estimate back', async () => {
      const caller = submitter()
      await services.quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: 1, cost_limit: 5, period: 'day' })
      const jobId = await submit(caller, [{ name: 'a' }], { estimated_cost: 5 })
      const cut = uploadRequest(chunksOf(someBytes(5_000), 1_000, 2), { jobId, name: 'a' })
      expect(await services.artifacts.upload({ caller }, cut)).toEqual({ kind: 'cut' })
      await passDeadline(jobId, 299_000)
      await expire()
      expect(await job(caller, jobId)).toMatchObject({ state: 'PENDING' })
      await passDeadline(jobId)
      await expire()
      expect(await job(caller, jobId)).toMatchObject({ state: 'CANCELED', error: { code: 'UPLOAD_OVERDUE' } })
      await expect(send(caller, jobId, someBytes(3), { name: 'a' })).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
      await submit(caller, [], { estimated_cost: 5 })
      await tidy()
      expect(uploads()).toEqual([])
    })

    test('has as much time again with every chunk', async () => {
      const caller = submitter()
      const jobId = await submit(caller, [{ name: 'a', size_bytes: 4 }], { upload_ttl_seconds: 60 })
      for (let i = 0; i < 3; i++) {
        await passDeadline(jobId, 59_000)
        expect(await send(caller, jobId, Buffer.from([i]), { name: 'a', fromByte: i })).toMatchObject({
          kind: 'partial',
          receivedBytes: i + 1,
        })
      }
      await expire()
      expect(await send(caller, jobId, Buffer.from([3]), { name: 'a', fromByte: 3 })).toMatchObject({
        kind: 'ready',
        artifact: { sha256: sha256Of(Buffer.from([0, 1, 2, 3])) },
      })
    })

    test('is told of at once when it was canceled while its bytes come', async () => {
      const caller = submitter()
      const jobId = await submit(caller, [{ name: 'a' }], { upload_ttl_seconds: 1 })
      async function* slow() {
        yield someBytes(10)
        await services.jobs.cancel(caller, jobId)
        const untilMs = performance.now() + 300
        while (performance.now() < untilMs) await new Promise((resolve) => setTimeout(resolve, 10))
        yield someBytes(10)
        throw new Error('It was not stopped')
      }
      const upload = services.artifacts.upload({ caller }, uploadRequest(slow(), { jobId, name: 'a' }))
      await expect(upload).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
      await tidy()
      expect(uploads()).toEqual([])
    })

    test('need not be sent what its user has sent before; what others have sent is theirs', async () => {
      const [ann, bob, bytes] = [submitter(), submitter(), someBytes(999)]
      await send(ann, null, bytes)
      const [sha256, wanted] = [sha256Of(bytes), (name: string) => [{ name, sha256: sha256Of(bytes) }]]
      const mine = await submit(ann, wanted('x'))
      expect(await job(ann, mine)).toMatchObject({ awaits_artifacts: false })
      expect(await leasable(mine)).toBe(true)
      expect(await services.artifacts.ofJob({ caller: ann }, mine)).toMatchObject([
        { name: 'x', sha256, size_bytes: 999, state: 'ready' },
      ])
      const theirs = await submit(bob, wanted('x'))
      expect(await job(bob, theirs)).toMatchObject({ awaits_artifacts: true })
      await send(bob, theirs, bytes, { name: 'x' })
      expect(await job(bob, theirs)).toMatchObject({ awaits_artifacts: false })
      // All three have one file.
      expect(fileOf(bytes)).toHaveLength(1)
      const other = await submit(ann, [{ name: 'x', sha256, size_bytes: 1 }])
      expect(await job(ann, other)).toMatchObject({ awaits_artifacts: true })
    })

    test('and takes the place of another has what that one was given', async () => {
      const [caller, bytes] = [submitter(), someBytes(44)]
      const jobId = await submit(caller, [{ name: 'a' }, { name: 'b' }])
      await send(caller, jobId, bytes, { name: 'a' })
      await services.jobs.cancel(caller, jobId)
      const { job: next } = await services.deadLetters.replace(caller, jobId, { edited: true }, null)
      expect(next).toMatchObject({ replaces_job_id: jobId, awaits_artifacts: true })
      expect(await services.artifacts.ofJob({ caller }, next.job_id)).toMatchObject([
        { name: 'a', state: 'ready', sha256: sha256Of(bytes) },
        { name: 'b', state: 'awaited' },
      ])
      await send(caller, next.job_id, bytes, { name: 'b' })
      expect(await job(caller, next.job_id)).toMatchObject({ awaits_artifacts: false })
    })

    test('and was canceled waits again when it is retried', async () => {
      const caller = submitter()
      await services.quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: null, cost_limit: 5, period: 'day' })
      const jobId = await submit(caller, [{ name: 'a' }], { estimated_cost: 5 })
      await services.jobs.cancel(caller, jobId)
      expect(await services.deadLetters.retry(caller, jobId)).toMatchObject({
        state: 'PENDING',
        awaits_artifacts: true,
      })
      await passDeadline(jobId)
      await expire()
      expect(await job(caller, jobId)).toMatchObject({ state: 'CANCELED', error: { code: 'UPLOAD_OVERDUE' } })
      await services.deadLetters.retry(caller, jobId)
      await send(caller, jobId, someBytes(3), { name: 'a' })
      expect(await leasable(jobId)).toBe(true)
      expect(await services.quotas.get(caller, caller.userId)).toMatchObject({ spent: 5, active_jobs: 1 })
    })

    test('that asks for too much is refused', async () => {
      const refused = submit(submitter(), [{ name: 'a', size_bytes: BYTES_MAX + 1 }])
      await expect(refused).rejects.toMatchObject({ code: 'PAYLOAD_TOO_LARGE' })
    })
  })

  describe('an upload', () => {
    test('that broke off goes on where it was', async () => {
      const [caller, bytes] = [submitter(), someBytes(50_000)]
      const sha256 = sha256Of(bytes)
      const cut = chunksOf(bytes, 1_000, 20)
      expect(await services.artifacts.upload({ caller }, uploadRequest(cut, { sha256 }))).toEqual({ kind: 'cut' })
      await expect(send(caller, null, bytes, { sha256, fromByte: 10_000 })).rejects.toMatchObject({
        code: 'UPLOAD_OFFSET_MISMATCH',
        details: { upload_offset: 20_000 },
      })
      const rest = bytes.subarray(20_000)
      const uploaded = await send(caller, null, rest, { sha256, fromByte: 20_000 })
      expect(uploaded).toMatchObject({ kind: 'ready', receivedBytes: 50_000, artifact: { sha256 } })
    })

    test('that is repeated is accepted without its bytes, and with others refused', async () => {
      const [caller, bytes] = [submitter(), someBytes(500)]
      const jobId = await submit(caller, [{ name: 'a' }])
      const first = await send(caller, jobId, bytes, { name: 'a' })
      if (first.kind !== 'ready') throw new Error(first.kind)
      const repeated = { ...first, kind: 'repeated' }
      expect(await send(caller, jobId, bytes, { name: 'a' })).toEqual(repeated)
      expect(await send(caller, jobId, Buffer.alloc(0), { name: 'a', sha256: sha256Of(bytes) })).toEqual(repeated)
      expect(await send(caller, jobId, Buffer.alloc(0), { name: 'a', fromByte: 500 })).toEqual(repeated)
      for (const changes of [{ sha256: sha256Of(someBytes(1)) }, {}, { fromByte: 3 }]) {
        const other = send(caller, jobId, someBytes(500), { name: 'a', ...changes })
        await expect(other).rejects.toMatchObject({ code: 'ARTIFACT_CONFLICT' })
      }
      expect(fileOf(bytes)).toHaveLength(1)
    })

    test('that is too large is refused, however it comes, and leaves nothing', async () => {
      const [caller, bytes] = [submitter(), someBytes(BYTES_MAX + 1)]
      for (const changes of [{}, { sizeBytes: bytes.length }, { contentLength: bytes.length }]) {
        await expect(send(caller, null, bytes, changes)).rejects.toMatchObject({ code: 'PAYLOAD_TOO_LARGE' })
      }
      expect(await send(caller, null, bytes.subarray(1), {})).toMatchObject({ kind: 'ready' })
      expect(uploads()).toEqual([])
    })

    test('is nobody else’s business', async () => {
      const [ann, bob, viewer, operator] = [submitter(), submitter(), callerOf('viewer'), callerOf('operator')]
      const jobId = await submit(ann, [{ name: 'a' }, { name: 'b' }])
      await expect(send(bob, jobId, someBytes(3), { name: 'a' })).rejects.toMatchObject({ code: 'NOT_FOUND' })
      const uploaded = await send(ann, jobId, someBytes(3), { name: 'a' })
      if (uploaded.kind === 'cut') throw new Error('cut')
      const { artifact_id } = uploaded.artifact
      for (const reader of [{ caller: bob }, { workerId: 'w' }]) {
        await expect(services.artifacts.find(reader, artifact_id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
        await expect(services.artifacts.ofJob(reader, jobId)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      }
      for (const caller of [ann, viewer, operator]) {
        expect((await services.artifacts.find({ caller }, artifact_id)).sizeBytes).toBe(3)
      }
      expect(await send(operator, jobId, someBytes(3), { name: 'b' })).toMatchObject({ kind: 'ready' })
    })
  })

  describe('a worker', () => {
    async function running(artifacts: AwaitedArtifactShape[] = []) {
      const [caller, workerId] = [submitter(), unique('worker')]
      const jobId = await submit(caller, artifacts)
      for (const { name } of artifacts) await send(caller, jobId, someBytes(11), { name })
      await leasable(jobId)
      const { queue } = await job(caller, jobId)
      const [lease] = await services.runs.lease(workerId, {
        queues: [queue],
        kinds: ['work'],
        max: 1,
        waitMs: 0,
        startId: 's',
      })
      if (lease === undefined) throw new Error('There is a run to lease')
      return { caller, workerId, jobId, lease }
    }

    test('reads the artifacts of the jobs that it holds, as long as it holds them', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const [artifact] = await services.artifacts.ofJob({ workerId }, jobId)
      const id = artifact?.artifact_id ?? ''
      expect(await buffer(await (await services.artifacts.find({ workerId }, id)).open(null))).toHaveLength(11)
      await expect(services.artifacts.find({ workerId: 'other' }, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      const report = {
        verb: 'finish',
        result: '1',
        summaryText: null,
        freqsCsv: null,
        meta: null,
        costMicros: null,
      } as const
      await services.runs.report(workerId, lease.lease_id, report)
      await expect(services.artifacts.find({ workerId }, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      expect((await services.artifacts.find({ caller }, id)).sizeBytes).toBe(11)
    })

    test('leaves what its run has made, bound to its lease', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const bytes = someBytes(77)
      const output = (changes = {}) =>
        services.artifacts.upload(
          { workerId },
          uploadRequest(bytes, { name: 'a', leaseId: lease.lease_id, ...changes }),
        )
      expect(await output()).toMatchObject({
        kind: 'ready',
        artifact: { name: 'a', job_id: jobId, run_id: lease.run_id, state: 'ready', expires_at: null },
      })
      expect(await output()).toMatchObject({ kind: 'repeated' })
      expect(await services.artifacts.ofJob({ caller }, jobId)).toMatchObject([
        { run_id: null },
        { run_id: lease.run_id },
      ])
      await expect(output({ leaseId: null })).rejects.toMatchObject({ code: 'INVALID_PAYLOAD' })
      await expect(output({ leaseId: 'none' })).rejects.toMatchObject({ code: 'NOT_FOUND' })
      await expect(output({ leaseId: `${lease.run_id}.x` })).rejects.toMatchObject({ code: 'LEASE_LOST' })
      const stranger = uploadRequest(bytes, { name: 'z', leaseId: lease.lease_id })
      await expect(services.artifacts.upload({ workerId: 'x' }, stranger)).rejects.toMatchObject({ code: 'LEASE_LOST' })
      await expect(services.artifacts.upload({ caller }, stranger)).rejects.toMatchObject({ code: 'FORBIDDEN' })
    })

    test('is not handed what an earlier run of the job has left', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const output = uploadRequest(someBytes(5), { name: 'checkpoint', leaseId: lease.lease_id })
      expect(await services.artifacts.upload({ workerId }, output)).toMatchObject({ kind: 'ready' })
      await services.runs.release(workerId, lease.lease_id)
      const { queue } = await job(caller, jobId)
      const [next] = await services.runs.lease('next', { queues: [queue], kinds: [], max: 1, waitMs: 0 })
      expect(next).toMatchObject({ job_id: jobId, artifacts: [{ name: 'a' }] })
      expect(next?.artifacts).toHaveLength(1)
      // It can ask for it all the same.
      expect(await services.artifacts.ofJob({ workerId: 'next' }, jobId)).toMatchObject([
        { name: 'a' },
        { name: 'checkpoint' },
      ])
    })

    test('that lost its lease while it sends leaves nothing', async () => {
      const { caller, workerId, jobId, lease } = await running()
      const bytes = someBytes(2_000)
      async function* meanwhile() {
        yield bytes.subarray(0, 1_000)
        await sql(services.deps.store, 'UPDATE ichido.runs SET lease_id = NULL WHERE job_id = $1', jobId)
        yield bytes.subarray(1_000)
      }
      const upload = services.artifacts.upload(
        { workerId },
        uploadRequest(meanwhile(), { name: 'out', leaseId: lease.lease_id }),
      )
      await expect(upload).rejects.toMatchObject({ code: 'LEASE_LOST' })
      expect(fileOf(bytes)).toEqual([])
      expect(await services.artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'out', state: 'awaited' }])
      await sql(services.deps.store, 'UPDATE ichido.artifacts SET expires_at = 0 WHERE job_id = $1', jobId)
      await tidy()
      expect(await services.artifacts.ofJob({ caller }, jobId)).toEqual([])
      expect(uploads()).toEqual([])
    })
  })

  describe('tidying', () => {
    test('removes what no job came for, and no content that somebody still has', async () => {
      const [ann, bob, shared, lone] = [submitter(), submitter(), someBytes(321), someBytes(322)]
      await send(ann, null, shared)
      await send(ann, null, lone)
      const jobId = await submit(bob, [{ name: 'a' }])
      await send(bob, jobId, shared, { name: 'a' })
      const age = (ms: number) =>
        sql(
          services.deps.store,
          `UPDATE ichido.artifacts SET expires_at = expires_at - ${ms} WHERE user_id = $1`,
          ann.userId,
        )
      await age(UNUSED_ARTIFACT_TTL_MS - 60_000)
      await tidy()
      expect([fileOf(shared).length, fileOf(lone).length]).toEqual([1, 1])
      await age(60_001)
      await tidy()
      expect([fileOf(shared).length, fileOf(lone).length]).toEqual([1, 0])
      const [artifact] = await services.artifacts.ofJob({ caller: bob }, jobId)
      const found = await services.artifacts.find({ caller: bob }, artifact?.artifact_id ?? '')
      expect(await buffer(await found.open(null))).toEqual(shared)
      // Gone is gone: its user is asked for it again.
      expect(await job(ann, await submit(ann, [{ name: 'x', sha256: sha256Of(lone) }]))).toMatchObject({
        awaits_artifacts: true,
      })
    })
  })
})
