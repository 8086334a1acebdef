import { describe, expect, test } from 'vitest'
import { createExpireUploads } from '../../leader/duties/tidy-artifacts.ts'
import {
  ARTIFACT_BYTES_MAX,
  chunksOf,
  eachArtifactServices,
  sha256Of,
  someBytes,
  uploadRequest,
} from '../../testing/services/artifacts.ts'
import { sql } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'

eachArtifactServices(({ services, submitter, submit, send, job, leasable, tidy, fileOf, uploads }) => {
  async function passDeadline(jobId: string, ms = 301_000) {
    await sql(
      services().deps.store,
      `UPDATE ichido.upload_waits SET expires_at = expires_at - ${ms} WHERE job_id = $1`,
      jobId,
    )
  }
  const expire = () => createExpireUploads(services().deps)()

  describe('a job that waits for artifacts', () => {
    test('is held until the last artifact has arrived, and then leased', async () => {
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
      expect(await services().artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'a' }, { name: 'b' }])
      expect(uploads()).toEqual([])

      const [lease] = await services().runs.lease('w', { queues: [released.queue], kinds: ['work'], max: 1, waitMs: 0 })
      expect(lease).toMatchObject({ job_id: jobId, artifacts: [{ name: 'a', size_bytes: 100_000 }, { name: 'b' }] })
    })

    test('also waits for its run_at', async () => {
      const [caller, bytes] = [submitter(), someBytes(5)]
      const jobId = await submit(caller, [{ name: 'a' }], { delay_seconds: 3600 })
      const before = (await job(caller, jobId)).run_at
      await send(caller, jobId, bytes, { name: 'a' })
      expect(await job(caller, jobId)).toMatchObject({ awaits_artifacts: false, run_at: before })
      expect(await leasable(jobId)).toBe(false)
    })

    test('counts against the quota, and can be canceled', async () => {
      const caller = submitter()
      await services().quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: 1, cost_limit: null, period: 'month' })
      const jobId = await submit(caller, [{ name: 'a' }])
      await expect(submit(caller, [])).rejects.toThrow('Quota exceeded')
      await services().jobs.cancel(caller, jobId)
      expect(await job(caller, jobId)).toMatchObject({ state: 'CANCELED', awaits_artifacts: false })
      await expect(send(caller, jobId, someBytes(3), { name: 'a' })).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
      await submit(caller, [])
      expect(await services().artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'a', state: 'awaited' }])
    })

    test('refuses an artifact that it does not wait for', async () => {
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

    test('whose upload stops is canceled, and frees its slot and its estimate', async () => {
      const caller = submitter()
      await services().quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: 1, cost_limit: 5, period: 'day' })
      const jobId = await submit(caller, [{ name: 'a' }], { estimated_cost: 5 })
      const cut = uploadRequest(chunksOf(someBytes(5_000), 1_000, 2), { jobId, name: 'a' })
      expect(await services().artifacts.upload({ caller }, cut)).toEqual({ kind: 'cut' })
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

    test('gets its whole time again with every chunk', async () => {
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

    test('that is canceled ends a running upload at once', async () => {
      const caller = submitter()
      const jobId = await submit(caller, [{ name: 'a' }], { upload_ttl_seconds: 1 })
      async function* slow() {
        yield someBytes(10)
        await services().jobs.cancel(caller, jobId)
        const untilMs = performance.now() + 300
        while (performance.now() < untilMs) await new Promise((resolve) => setTimeout(resolve, 10))
        yield someBytes(10)
        throw new Error('It was not stopped')
      }
      const upload = services().artifacts.upload({ caller }, uploadRequest(slow(), { jobId, name: 'a' }))
      await expect(upload).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
      await tidy()
      expect(uploads()).toEqual([])
    })

    test('needs no content that its own user has sent before', async () => {
      const [ann, bob, bytes] = [submitter(), submitter(), someBytes(999)]
      await send(ann, null, bytes)
      const [sha256, wanted] = [sha256Of(bytes), (name: string) => [{ name, sha256: sha256Of(bytes) }]]
      const mine = await submit(ann, wanted('x'))
      expect(await job(ann, mine)).toMatchObject({ awaits_artifacts: false })
      expect(await leasable(mine)).toBe(true)
      expect(await services().artifacts.ofJob({ caller: ann }, mine)).toMatchObject([
        { name: 'x', sha256, size_bytes: 999, state: 'ready' },
      ])
      const theirs = await submit(bob, wanted('x'))
      expect(await job(bob, theirs)).toMatchObject({ awaits_artifacts: true })
      await send(bob, theirs, bytes, { name: 'x' })
      expect(await job(bob, theirs)).toMatchObject({ awaits_artifacts: false })
      // All three jobs share one file.
      expect(fileOf(bytes)).toHaveLength(1)
      const other = await submit(ann, [{ name: 'x', sha256, size_bytes: 1 }])
      expect(await job(ann, other)).toMatchObject({ awaits_artifacts: true })
    })

    test('that replaces another job has its artifacts', async () => {
      const [caller, bytes] = [submitter(), someBytes(44)]
      const jobId = await submit(caller, [{ name: 'a' }, { name: 'b' }])
      await send(caller, jobId, bytes, { name: 'a' })
      await services().jobs.cancel(caller, jobId)
      const { job: next } = await services().deadLetters.replace(caller, jobId, { edited: true }, null)
      expect(next).toMatchObject({ replaces_job_id: jobId, awaits_artifacts: true })
      expect(await services().artifacts.ofJob({ caller }, next.job_id)).toMatchObject([
        { name: 'a', state: 'ready', sha256: sha256Of(bytes) },
        { name: 'b', state: 'awaited' },
      ])
      await send(caller, next.job_id, bytes, { name: 'b' })
      expect(await job(caller, next.job_id)).toMatchObject({ awaits_artifacts: false })
    })

    test('that was canceled waits again after a retry', async () => {
      const caller = submitter()
      await services().quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: null, cost_limit: 5, period: 'day' })
      const jobId = await submit(caller, [{ name: 'a' }], { estimated_cost: 5 })
      await services().jobs.cancel(caller, jobId)
      expect(await services().deadLetters.retry(caller, jobId)).toMatchObject({
        state: 'PENDING',
        awaits_artifacts: true,
      })
      await passDeadline(jobId)
      await expire()
      expect(await job(caller, jobId)).toMatchObject({ state: 'CANCELED', error: { code: 'UPLOAD_OVERDUE' } })
      expect(await services().quotas.get(caller, caller.userId)).toMatchObject({ spent: 0, active_jobs: 0 })
      await services().deadLetters.retry(caller, jobId)
      await send(caller, jobId, someBytes(3), { name: 'a' })
      expect(await leasable(jobId)).toBe(true)
      expect(await services().quotas.get(caller, caller.userId)).toMatchObject({ spent: 5, active_jobs: 1 })
    })

    test('with too many or too large artifacts is refused', async () => {
      const refused = submit(submitter(), [{ name: 'a', size_bytes: ARTIFACT_BYTES_MAX + 1 }])
      await expect(refused).rejects.toMatchObject({ code: 'PAYLOAD_TOO_LARGE' })
    })
  })
})
