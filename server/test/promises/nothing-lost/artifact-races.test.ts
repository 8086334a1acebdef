import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { FIRST_ID } from '../../../src/core/run/job.ts'
import { completeUpload, listArtifacts, openUpload, renewUpload } from '../../../src/store/artifacts/artifacts.ts'
import {
  cancelOverdue,
  deleteExpiredArtifacts,
  forgetUnnamedBlobs,
} from '../../../src/store/artifacts/tidy-artifacts.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { command } from '../../../src/store/port.ts'
import { queryText } from '../../../src/store/statement.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { sha256Of, someBytes } from '../../../src/testing/services/artifacts.ts'
import { integer, text } from '../../../src/testing/store/rows.ts'
import { only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run two commands on the artifacts of one job. The result must be that of one of the two orders. */

const nodes = twoNodes()

async function waiting(names: readonly string[]) {
  const scene = new Scene(nodes.a())
  const list = names.map((name) => ({ artifactId: v7(), name, sha256: null, sizeBytes: null }))
  const jobId = await scene.submitted({ artifacts: { uploadTtlMs: 300_000, list } })
  const complete = (i: number, bytes = someBytes(4)) =>
    completeUpload({ kind: 'input', jobId }, stored(list[i]?.artifactId ?? '', bytes))
  return { scene, jobId, complete, run: async () => only(await scene.runs(jobId)) }
}

function stored(artifactId: string, bytes: Uint8Array) {
  return { artifactId, blobId: v7(), sha256: sha256Of(bytes), sizeBytes: bytes.length }
}

const overdue = (jobId: string) =>
  sql(nodes.a(), 'UPDATE ichido.upload_waits SET expires_at = 0 WHERE job_id = $1', jobId)
const uploadWaits = (jobId: string) => sql(nodes.a(), 'SELECT job_id FROM ichido.upload_waits WHERE job_id = $1', jobId)
const isHeld = (row: { run_at?: unknown }) => Number(row.run_at) > 1e14

describe('the last uploads of a job finish at the same time', () => {
  test('exactly one of the last two uploads releases the run', async () => {
    const { scene, jobId, complete, run } = await waiting(['a', 'b'])
    const [one, other] = await nodes.meet(complete(0), complete(1))
    expect([one, other]).toMatchObject([
      { kind: 'ready', queue: null },
      { kind: 'ready', queue: scene.queue },
    ])
    expect(isHeld(await run())).toBe(false)
    expect(await uploadWaits(jobId)).toEqual([])
    await scene.age(1)
    expect(await scene.leased()).toMatchObject({ jobId })
  })

  test('uploading the same artifact twice stores it once', async () => {
    const { jobId, complete, run } = await waiting(['a'])
    const bytes = someBytes(9)
    const [one, other] = await nodes.meet(complete(0, bytes), complete(0, bytes))
    expect([one, other]).toMatchObject([{ kind: 'ready' }, { kind: 'repeated' }])
    expect(isHeld(await run())).toBe(false)
    const [artifact] = await nodes.a().read(listArtifacts(jobId, 10))
    expect(one).toMatchObject({ artifact: { blobId: artifact?.blobId } })
    expect(other).toMatchObject({ artifact: { blobId: artifact?.blobId } })
  })

  test('the second upload of an artifact with different bytes is refused', async () => {
    const { complete } = await waiting(['a'])
    expect(await nodes.meet(complete(0), complete(0))).toMatchObject([
      { kind: 'ready' },
      { kind: 'refused', reason: 'OTHER_CONTENT' },
    ])
  })

  test('exactly one of six simultaneous uploads releases the run', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const names = ['a', 'b', 'c', 'd', 'e', 'f']
      const { scene, complete, run } = await waiting(names)
      const bytes = someBytes(4)
      const outcomes = await Promise.all(
        names.map((_, i) => (i % 2 === 0 ? nodes.a() : nodes.b()).write(complete(i, i < 3 ? bytes : someBytes(4)))),
      )
      expect(outcomes.filter((outcome) => outcome.kind === 'ready' && outcome.queue === scene.queue)).toHaveLength(1)
      expect(isHeld(await run())).toBe(false)
    }
  })
})

describe('an upload races with a cancel', () => {
  test('if the cancel commits first, the upload is refused', async () => {
    const { jobId, complete, run } = await waiting(['a'])
    expect(await nodes.meet(cancelJob(jobId), complete(0))).toMatchObject([
      { kind: 'canceled' },
      { kind: 'refused', reason: 'ALREADY_ENDED' },
    ])
    expect(await run()).toMatchObject({ state: 'CANCELED' })
    expect(await nodes.a().read(listArtifacts(jobId, 10))).toMatchObject([{ state: 'awaited', blobId: null }])
  })

  test('if the upload commits first, it is stored and the job is canceled', async () => {
    const { jobId, complete, run } = await waiting(['a'])
    expect(await nodes.meet(complete(0), cancelJob(jobId))).toMatchObject([{ kind: 'ready' }, { kind: 'canceled' }])
    expect(await run()).toMatchObject({ state: 'CANCELED' })
  })
})

describe('an upload races with its deadline', () => {
  test('an upload that completes before the sweep is not canceled', async () => {
    const { jobId, complete, run } = await waiting(['a'])
    await overdue(jobId)
    const [done, swept] = await nodes.meet(complete(0), cancelOverdue(100))
    expect(done).toMatchObject({ kind: 'ready' })
    expect(swept.canceledJobIds).not.toContain(jobId)
    expect(await run()).toMatchObject({ state: 'PENDING' })
  })

  test('an upload that was renewed is not canceled', async () => {
    const { jobId, run } = await waiting(['a'])
    await overdue(jobId)
    const [renewed, swept] = await nodes.meet(renewUpload({ kind: 'input', jobId }, v7(), 1), cancelOverdue(100))
    expect([renewed, swept.canceledJobIds]).toEqual([true, []])
    expect((await nodes.b().write(cancelOverdue(100))).canceledJobIds).toEqual([])
    expect(await run()).toMatchObject({ state: 'PENDING' })
  })

  test('an upload that completes after the sweep is refused', async () => {
    const { scene, jobId, complete, run } = await waiting(['a'])
    await overdue(jobId)
    const [swept, late] = await nodes.meet(cancelOverdue(100), complete(0))
    expect(swept.canceledJobIds).toEqual([jobId])
    expect(late).toEqual({ kind: 'refused', reason: 'ALREADY_ENDED' })
    expect(await run()).toMatchObject({ state: 'CANCELED', version: 2 })
    expect(await scene.events(jobId)).toMatchObject([{ state: 'PENDING' }, { state: 'CANCELED' }])
  })

  test('two sweeping nodes and a cancel end each overdue job exactly once', async () => {
    const jobs = await Promise.all(Array.from({ length: 20 }, () => waiting(['a'])))
    for (const { jobId } of jobs) await overdue(jobId)
    const sweep = async (node: typeof nodes.a) => {
      const found: string[] = []
      for (;;) {
        const { seen, canceledJobIds } = await node().write(cancelOverdue(3))
        found.push(...canceledJobIds)
        if (seen === 0) return found
      }
    }
    const [first] = jobs
    const [a, b, canceled] = await Promise.all([
      sweep(nodes.a),
      sweep(nodes.b),
      nodes.a().write(cancelJob(first?.jobId ?? '')),
    ])
    const swept = [...a, ...b, ...(canceled.kind === 'canceled' ? [first?.jobId] : [])]
    expect(swept.sort()).toEqual(jobs.map(({ jobId }) => jobId).sort())
    for (const { run } of jobs) expect(await run()).toMatchObject({ state: 'CANCELED', version: 2 })
  })
})

describe('a blob without artifacts is removed while the same content is uploaded again', () => {
  async function unbound(bytes: Uint8Array) {
    const userId = new Scene(nodes.a()).userId
    const owner = { kind: 'unbound', userId } as const
    const wish = { artifactId: v7(), name: 'x', sha256: null, sizeBytes: null, uploadTtlMs: 60_000 }
    const opened = await nodes.a().write(openUpload(owner, wish))
    if (opened.kind === 'refused') throw new Error(opened.reason)
    const { artifactId } = opened.artifact
    return { userId, artifactId, complete: completeUpload(owner, stored(artifactId, bytes)) }
  }
  const blobsOf = (bytes: Uint8Array) =>
    sql(nodes.a(), 'SELECT blob_id FROM ichido.blobs WHERE sha256 = $1', sha256Of(bytes))

  async function givenUp(bytes: Uint8Array) {
    const { userId, artifactId, complete } = await unbound(bytes)
    await nodes.a().write(complete)
    const blobId = text(only(await blobsOf(bytes)), 'blob_id')
    const remove = () => sql(nodes.a(), 'DELETE FROM ichido.artifacts WHERE id = $1', artifactId)
    const removeAndForget = command('test', function* work() {
      yield* queryText('DELETE FROM ichido.artifacts WHERE id = $1', artifactId)
      return yield* forgetUnnamedBlobs(FIRST_ID, 10_000).work(false)
    })
    return { userId, blobId, remove, removeAndForget }
  }

  test('if the upload commits before the removal, the blob stays', async () => {
    const bytes = someBytes(8)
    const { blobId, remove } = await givenUp(bytes)
    await remove()
    const [stored, forgot] = await nodes.meet((await unbound(bytes)).complete, forgetUnnamedBlobs(FIRST_ID, 10_000))
    expect(stored).toMatchObject({ kind: 'ready', artifact: { blobId } })
    expect(forgot.removed.map((blob) => blob.blobId)).not.toContain(blobId)
    expect(await blobsOf(bytes)).toHaveLength(1)
  })

  test('if the removal commits first, the upload creates a new blob', async () => {
    const bytes = someBytes(8)
    const { blobId, remove } = await givenUp(bytes)
    await remove()
    const [forgot, stored] = await nodes.meet(forgetUnnamedBlobs(FIRST_ID, 10_000), (await unbound(bytes)).complete)
    expect(forgot.removed).toContainEqual({ blobId, sha256: sha256Of(bytes) })
    if (stored.kind === 'refused') throw new Error(stored.reason)
    expect(stored.artifact.blobId).not.toBe(blobId)
    expect(await blobsOf(bytes)).toEqual([{ blob_id: stored.artifact.blobId }])
  })

  test('a submitted job either gets the blob, or waits for its upload', async () => {
    for (const first of ['submit', 'forget'] as const) {
      const bytes = someBytes(8)
      const { userId, blobId, removeAndForget } = await givenUp(bytes)
      const list = [{ artifactId: v7(), name: 'a', sha256: sha256Of(bytes), sizeBytes: null }]
      const item = new Scene(nodes.a()).item({ userId, artifacts: { uploadTtlMs: 1_000, list } })
      const submit = submitJobs([item], () => '{}')
      const forgot =
        first === 'submit'
          ? (await nodes.meet(submit, removeAndForget))[1]
          : (await nodes.meet(removeAndForget, submit))[0]
      const gone = forgot.removed.some((blob) => blob.blobId === blobId)
      expect([gone, (await uploadWaits(item.jobId)).length]).toEqual(first === 'submit' ? [false, 0] : [true, 1])
    }
  })

  test('under load every ready artifact has its blob', async () => {
    const contents = Array.from({ length: 3 }, () => someBytes(8))
    const rounds = size(30, 1_000)
    let done = false
    async function upload(node: typeof nodes.a) {
      for (let i = 0; i < rounds; i++) {
        const bytes = contents[i % contents.length] ?? someBytes(1)
        const { artifactId, complete } = await unbound(bytes)
        expect(await node().write(complete)).toMatchObject({ kind: 'ready' })
        await sql(nodes.a(), 'UPDATE ichido.artifacts SET expires_at = 0 WHERE id = $1', artifactId)
      }
    }
    async function tidy() {
      while (!done) {
        await nodes.b().write(deleteExpiredArtifacts(5))
        await nodes.b().write(forgetUnnamedBlobs(FIRST_ID, 10_000))
        const [lost] = await sql(
          nodes.a(),
          `SELECT count(*) AS lost FROM ichido.artifacts a WHERE state = 'ready'
            AND NOT EXISTS (SELECT 1 FROM ichido.blobs b WHERE b.blob_id = a.blob_id)`,
        )
        expect(integer(lost, 'lost')).toBe(0)
      }
    }
    const uploads = Promise.all([upload(nodes.a), upload(nodes.b)]).finally(() => {
      done = true
    })
    await Promise.all([uploads, tidy()])
  })
})
