import { buffer } from 'node:stream/consumers'
import type { AwaitedArtifactShape } from '@ichido/sdk/protocol'
import { describe, expect, test } from 'vitest'
import { UNUSED_ARTIFACT_TTL_MS } from '../../core/run/artifact.ts'
import {
  ARTIFACT_BYTES_MAX,
  chunksOf,
  eachArtifactServices,
  sha256Of,
  someBytes,
  uploadRequest,
} from '../../testing/services/artifacts.ts'
import { callerOf } from '../../testing/services/each-services.ts'
import { sql, unique } from '../../testing/store/store.ts'

eachArtifactServices(({ services, submitter, submit, send, job, leasable, tidy, fileOf, uploads }) => {
  describe('an upload', () => {
    test('that broke off continues', async () => {
      const [caller, bytes] = [submitter(), someBytes(50_000)]
      const sha256 = sha256Of(bytes)
      const cut = chunksOf(bytes, 1_000, 20)
      expect(await services().artifacts.upload({ caller }, uploadRequest(cut, { sha256 }))).toEqual({ kind: 'cut' })
      await expect(send(caller, null, bytes, { sha256, fromByte: 10_000 })).rejects.toMatchObject({
        code: 'UPLOAD_OFFSET_MISMATCH',
        details: { upload_offset: 20_000 },
      })
      const rest = bytes.subarray(20_000)
      const uploaded = await send(caller, null, rest, { sha256, fromByte: 20_000 })
      expect(uploaded).toMatchObject({ kind: 'ready', receivedBytes: 50_000, artifact: { sha256 } })
    })

    test('that is repeated is accepted without bytes, and refused with other bytes', async () => {
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

    test('that is too large is refused, and leaves nothing', async () => {
      const [caller, bytes] = [submitter(), someBytes(ARTIFACT_BYTES_MAX + 1)]
      for (const changes of [{}, { sizeBytes: bytes.length }, { contentLength: bytes.length }]) {
        await expect(send(caller, null, bytes, changes)).rejects.toMatchObject({ code: 'PAYLOAD_TOO_LARGE' })
      }
      expect(await send(caller, null, bytes.subarray(1), {})).toMatchObject({ kind: 'ready' })
      expect(uploads()).toEqual([])
    })

    test('is hidden from other users', async () => {
      const [ann, bob, viewer, operator] = [submitter(), submitter(), callerOf('viewer'), callerOf('operator')]
      const jobId = await submit(ann, [{ name: 'a' }, { name: 'b' }])
      await expect(send(bob, jobId, someBytes(3), { name: 'a' })).rejects.toMatchObject({ code: 'NOT_FOUND' })
      const uploaded = await send(ann, jobId, someBytes(3), { name: 'a' })
      if (uploaded.kind === 'cut') throw new Error('cut')
      const { artifact_id } = uploaded.artifact
      for (const reader of [{ caller: bob }, { workerId: 'w' }]) {
        await expect(services().artifacts.find(reader, artifact_id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
        await expect(services().artifacts.ofJob(reader, jobId)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      }
      for (const caller of [ann, viewer, operator]) {
        expect((await services().artifacts.find({ caller }, artifact_id)).sizeBytes).toBe(3)
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
      const [lease] = await services().runs.lease(workerId, {
        queues: [queue],
        kinds: ['work'],
        max: 1,
        waitMs: 0,
        startId: 's',
      })
      if (lease === undefined) throw new Error('There is a run to lease')
      return { caller, workerId, jobId, lease }
    }

    test('reads the artifacts of the jobs that it holds', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const [artifact] = await services().artifacts.ofJob({ workerId }, jobId)
      const id = artifact?.artifact_id ?? ''
      expect(await buffer(await (await services().artifacts.find({ workerId }, id)).open(null))).toHaveLength(11)
      await expect(services().artifacts.find({ workerId: 'other' }, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      const report = {
        verb: 'finish',
        result: '1',
        summaryText: null,
        freqsCsv: null,
        meta: null,
        costMicros: null,
      } as const
      await services().runs.finish(workerId, lease.lease_id, report)
      await expect(services().artifacts.find({ workerId }, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      expect((await services().artifacts.find({ caller }, id)).sizeBytes).toBe(11)
    })

    test('sends outputs of its run with its lease', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const bytes = someBytes(77)
      const output = (changes = {}) =>
        services().artifacts.upload(
          { workerId },
          uploadRequest(bytes, { name: 'a', leaseId: lease.lease_id, ...changes }),
        )
      expect(await output()).toMatchObject({
        kind: 'ready',
        artifact: { name: 'a', job_id: jobId, run_id: lease.run_id, state: 'ready', expires_at: null },
      })
      expect(await output()).toMatchObject({ kind: 'repeated' })
      expect(await services().artifacts.ofJob({ caller }, jobId)).toMatchObject([
        { run_id: null },
        { run_id: lease.run_id },
      ])
      await expect(output({ leaseId: null })).rejects.toMatchObject({ code: 'INVALID_PAYLOAD' })
      await expect(output({ leaseId: 'none' })).rejects.toMatchObject({ code: 'NOT_FOUND' })
      await expect(output({ leaseId: `${lease.run_id}.x` })).rejects.toMatchObject({ code: 'LEASE_LOST' })
      const stranger = uploadRequest(bytes, { name: 'z', leaseId: lease.lease_id })
      await expect(services().artifacts.upload({ workerId: 'x' }, stranger)).rejects.toMatchObject({
        code: 'LEASE_LOST',
      })
      await expect(services().artifacts.upload({ caller }, stranger)).rejects.toMatchObject({ code: 'FORBIDDEN' })
    })

    test('does not get outputs of an earlier run', async () => {
      const { caller, workerId, jobId, lease } = await running([{ name: 'a' }])
      const output = uploadRequest(someBytes(5), { name: 'checkpoint', leaseId: lease.lease_id })
      expect(await services().artifacts.upload({ workerId }, output)).toMatchObject({ kind: 'ready' })
      await services().runs.release(workerId, lease.lease_id)
      const { queue } = await job(caller, jobId)
      const [next] = await services().runs.lease('next', { queues: [queue], kinds: [], max: 1, waitMs: 0 })
      expect(next).toMatchObject({ job_id: jobId, artifacts: [{ name: 'a' }] })
      expect(next?.artifacts).toHaveLength(1)
      // The worker can still read it by its id.
      expect(await services().artifacts.ofJob({ workerId: 'next' }, jobId)).toMatchObject([
        { name: 'a' },
        { name: 'checkpoint' },
      ])
    })

    test('that loses its lease during an upload leaves nothing', async () => {
      const { caller, workerId, jobId, lease } = await running()
      const bytes = someBytes(2_000)
      async function* meanwhile() {
        yield bytes.subarray(0, 1_000)
        await sql(services().deps.store, 'UPDATE ichido.runs SET lease_id = NULL WHERE job_id = $1', jobId)
        yield bytes.subarray(1_000)
      }
      const upload = services().artifacts.upload(
        { workerId },
        uploadRequest(meanwhile(), { name: 'out', leaseId: lease.lease_id }),
      )
      await expect(upload).rejects.toMatchObject({ code: 'LEASE_LOST' })
      expect(fileOf(bytes)).toEqual([])
      expect(await services().artifacts.ofJob({ caller }, jobId)).toMatchObject([{ name: 'out', state: 'awaited' }])
      await sql(services().deps.store, 'UPDATE ichido.artifacts SET expires_at = 0 WHERE job_id = $1', jobId)
      await tidy()
      expect(await services().artifacts.ofJob({ caller }, jobId)).toEqual([])
      expect(uploads()).toEqual([])
    })
  })

  describe('retention', () => {
    test('removes unbound artifacts, but no content that is still in use', async () => {
      const [ann, bob, shared, lone] = [submitter(), submitter(), someBytes(321), someBytes(322)]
      await send(ann, null, shared)
      await send(ann, null, lone)
      const jobId = await submit(bob, [{ name: 'a' }])
      await send(bob, jobId, shared, { name: 'a' })
      const age = (ms: number) =>
        sql(
          services().deps.store,
          `UPDATE ichido.artifacts SET expires_at = expires_at - ${ms} WHERE user_id = $1`,
          ann.userId,
        )
      await age(UNUSED_ARTIFACT_TTL_MS - 60_000)
      await tidy()
      expect([fileOf(shared).length, fileOf(lone).length]).toEqual([1, 1])
      await age(60_001)
      await tidy()
      expect([fileOf(shared).length, fileOf(lone).length]).toEqual([1, 0])
      const [artifact] = await services().artifacts.ofJob({ caller: bob }, jobId)
      const found = await services().artifacts.find({ caller: bob }, artifact?.artifact_id ?? '')
      expect(await buffer(await found.open(null))).toEqual(shared)
      // After removal the content must be sent again.
      expect(await job(ann, await submit(ann, [{ name: 'x', sha256: sha256Of(lone) }]))).toMatchObject({
        awaits_artifacts: true,
      })
    })
  })
})
