import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { ENGINES, testServices } from '../../testing/services/services.ts'
import { renderForTest, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { completeUpload, openUpload, type Stored, type UploadOwner } from '../artifacts/artifacts.ts'
import { deleteExpiredArtifacts } from '../artifacts/tidy-artifacts.ts'
import { deleteJob } from '../jobs/cancel-or-delete.ts'
import type { Leased } from '../leasing/leased.ts'
import { storeLogs } from '../logs/run-logs.ts'
import type { Command, Store } from '../port.ts'
import type { SubmitOutcome } from '../submission/submission.ts'
import { submitJobs } from '../submission/submit-jobs.ts'
import { tryToLead } from '../system/leadership.ts'
import { removeJobs } from '../system/retention.ts'
import { clearQuota, findQuota, setQuota } from './quotas.ts'

/** A user never stores more bytes than its quota allows: payloads, artifacts and logs, over all nodes. */

const limited = (maxBytes: number | null) => ({
  maxConcurrent: null,
  costLimitMicros: null,
  period: 'month' as const,
  maxBytes,
})
const payload = (bytes: number) => JSON.stringify('x'.repeat(bytes - 2))
const used = async (store: Store, userId: string) => (await store.read(findQuota(userId))).usedBytes

/** The stored bytes of a user, counted row by row. */
async function stored(store: Store, userId: string): Promise<number> {
  const [row] = await sql(
    store,
    `SELECT (SELECT coalesce(sum(length(payload)), 0) FROM ichido.jobs WHERE user_id = $1)
      + (SELECT coalesce(sum(size_bytes), 0) FROM ichido.artifacts WHERE user_id = $1 AND state = 'ready')
      + (SELECT coalesce(sum(octet_length(l.chunk)), 0) FROM ichido.run_logs l JOIN ichido.runs r ON r.id = l.run_id
          WHERE r.user_id = $1) AS bytes`,
    userId,
  )
  return Number(row?.bytes)
}

function logs(scene: Scene, lease: Leased, n: number, text: string) {
  const { jobId, leaseId } = lease
  const chunks = [{ n, stream: 'stdout' as const, text }]
  return storeLogs({ jobId, leaseId, workerId: scene.workerId, chunks, bytesMax: 10_000 })
}

const unbound = (scene: Scene): UploadOwner => ({ kind: 'unbound', userId: scene.userId })

async function opened(scene: Scene, name: string, sizeBytes: number | null, owner = unbound(scene)) {
  const wish = { artifactId: v7(), name, sha256: null, sizeBytes, uploadTtlMs: 60_000 }
  return scene.store.write(openUpload(owner, wish))
}

const blob = (artifactId: string, sizeBytes: number): Stored => ({ artifactId, blobId: v7(), sha256: v7(), sizeBytes })

async function uploaded(scene: Scene, name: string, sizeBytes: number) {
  const open = await opened(scene, name, null)
  if (open.kind !== 'open') return open
  return scene.store.write(completeUpload(unbound(scene), blob(open.artifact.artifactId, sizeBytes)))
}

describe.each(ENGINES)('%s', (engine) => {
  let given: Awaited<ReturnType<typeof testServices>> | undefined
  const store = (): Store => given?.services.deps.store ?? missing()
  beforeAll(async () => {
    given = await testServices(engine)
  })
  afterAll(() => given?.close())

  test('payloads count in bytes, and a refusal names use and limit', async () => {
    const scene = new Scene(store())
    await store().write(setQuota(scene.userId, limited(100)))
    await scene.submitted({ payload: payload(60) })
    expect(await scene.submit({ payload: JSON.stringify('é'.repeat(20)) })).toEqual({
      kind: 'refused',
      refusal: {
        code: 'QUOTA_EXCEEDED',
        message: 'Quota exceeded: 60 of 100 bytes are stored, and this would add 42',
        details: { limit: 'max_bytes', used: 60, max: 100 },
      },
    })
    const batch = await scene.submitAll([25, 25, 15].map((bytes) => scene.item({ payload: payload(bytes) })))
    expect(
      batch.map(({ kind }) => kind),
      'one by one, and the last fits',
    ).toEqual(['created', 'refused', 'created'])
    expect(batch[2]).toMatchObject({ body: expect.stringContaining('100 of 100 bytes stored') })
    expect(await used(store(), scene.userId)).toBe(100)
  })

  test('without a limit nothing is counted; a later limit counts everything', async () => {
    const scene = new Scene(store())
    const lease = await scene.running({ payload: payload(50) })
    await store().write(logs(scene, lease, 0, 'twenty bytes of log.'))
    await uploaded(scene, 'a.txt', 30)
    expect(await used(store(), scene.userId)).toBeNull()
    expect(await sql(store(), 'SELECT used_bytes FROM ichido.quotas WHERE user_id = $1', scene.userId)).toEqual([
      { used_bytes: null },
    ])
    await store().write(setQuota(scene.userId, limited(105)))
    expect(await used(store(), scene.userId)).toBe(100)
    expect(await scene.submit({ payload: payload(6) })).toMatchObject({ kind: 'refused' })
    expect(await scene.submit({ payload: payload(5) })).toMatchObject({ kind: 'created' })
    await store().write(clearQuota(scene.userId))
    await scene.submitted({ payload: payload(95) })
    await store().write(setQuota(scene.userId, limited(200)))
    expect(await scene.submit({ payload: payload(3) }), 'also what came while there was none').toMatchObject({
      kind: 'refused',
    })
    expect(await used(store(), scene.userId)).toBe(await stored(store(), scene.userId))
  })

  test('a new default limit counts all users again', async () => {
    const scene = new Scene(store())
    try {
      await store().write(setQuota('*', limited(100)))
      await scene.submitted({ payload: payload(40) })
      await store().write(setQuota('*', limited(null)))
      await scene.submitted({ payload: payload(50) })
      await store().write(setQuota('*', limited(100)))
      expect(await scene.submit({ payload: payload(20) })).toMatchObject({
        refusal: { details: { used: 90, max: 100 } },
      })
    } finally {
      await store().write(setQuota('*', limited(null)))
    }
  })

  test('a log is cut off at the quota with a note, and its run goes on', async () => {
    const scene = new Scene(store())
    const lease = await scene.running({ payload: payload(100) })
    await store().write(setQuota(scene.userId, limited(200)))
    const chunk = (text: string, n: number) => store().write(logs(scene, lease, n, text))
    expect(await chunk('x'.repeat(150), 0)).toMatchObject({ kind: 'stored', accepted: 1 })
    expect(await chunk('more', 1)).toMatchObject({ kind: 'stored', accepted: 0 })
    const [row] = await sql(store(), 'SELECT chunk FROM ichido.run_logs WHERE run_id = $1', lease.runId)
    expect(row?.chunk).toMatch(/^x+\n\[The user may store no more bytes; the rest is cut off\.\]\n$/)
    expect(await used(store(), scene.userId)).toBe(200)
    expect(await stored(store(), scene.userId)).toBe(200)
    expect(await scene.finish(lease)).toMatchObject({ kind: 'recorded' })
  })

  test('a too large artifact is refused before the upload and at its end', async () => {
    const scene = new Scene(store())
    await store().write(setQuota(scene.userId, limited(100)))
    const full = { kind: 'refused', reason: 'QUOTA_EXCEEDED', refusal: { details: { limit: 'max_bytes' } } }
    expect(await opened(scene, 'large', 101)).toMatchObject(full)
    expect(await sql(store(), 'SELECT 1 FROM ichido.artifacts WHERE user_id = $1', scene.userId)).toEqual([])
    expect(await uploaded(scene, 'first', 60)).toMatchObject({ kind: 'ready' })
    expect(await uploaded(scene, 'second', 41), 'its size was not known').toMatchObject(full)
    expect(await uploaded(scene, 'second', 40)).toMatchObject({ kind: 'ready' })
    expect(await used(store(), scene.userId)).toBe(100)
  })

  test('removed bytes are freed, each once', async () => {
    const scene = new Scene(store())
    await store().write(setQuota(scene.userId, limited(1_000)))
    const leases = [await scene.running({ payload: payload(100) }), await scene.running({ payload: payload(50) })]
    for (const lease of leases) {
      await store().write(logs(scene, lease, 0, 'ten bytes.'))
      await scene.finish(lease)
    }
    await uploaded(scene, 'unused', 30)
    expect(await used(store(), scene.userId)).toBe(200)
    const by = { id: v7(), actor: 'ann' }
    await store().write(deleteJob(leases[0]?.jobId ?? '', by))
    await store().write(deleteJob(leases[0]?.jobId ?? '', { ...by, id: v7() }))
    expect(await used(store(), scene.userId)).toBe(90)
    const term = { holder: 'node', epoch: (await store().write(tryToLead('node', 60_000))).epoch }
    await scene.age(1_000)
    const remove = () => store().write(removeJobs(term, [leases[1]?.jobId ?? ''], { jobMs: 1, letterMs: null }))
    expect((await remove()).rows.get('jobs')).toBe(1)
    await remove()
    expect(await used(store(), scene.userId)).toBe(30)
    await sql(store(), 'UPDATE ichido.artifacts SET expires_at = 1 WHERE user_id = $1', scene.userId)
    expect(await store().write(deleteExpiredArtifacts(10))).toBe(1)
    expect(await store().write(deleteExpiredArtifacts(10))).toBe(0)
    expect(await used(store(), scene.userId)).toBe(0)
  })
})

describe('on two nodes', () => {
  const nodes = twoNodes()
  const scenes = () => {
    const [one, other] = [new Scene(nodes.a()), new Scene(nodes.b())]
    return [one, Object.assign(other, { userId: one.userId, queue: one.queue, workerId: one.workerId })] as const
  }

  test('many submits together never exceed the limit', async () => {
    const both = scenes()
    const [one] = both
    await nodes.a().write(setQuota(one.userId, limited(500)))
    const submits = Array.from({ length: size(20, 200) }, (_, i) =>
      (both[i % 2] ?? one).submit({ payload: payload(30 + (i % 20)) }),
    )
    const kinds = (await Promise.all(submits)).map(({ kind }) => kind)
    expect(new Set(kinds)).toEqual(new Set(['created', 'refused']))
    const bytes = await stored(nodes.a(), one.userId)
    expect(bytes).toBeLessThanOrEqual(500)
    expect(await used(nodes.a(), one.userId)).toBe(bytes)
  })

  test('of two submits that fit only alone one is refused', async () => {
    const [one] = scenes()
    await nodes.a().write(setQuota(one.userId, limited(100)))
    const submit = () => submitJobs([one.item({ payload: payload(60) })], renderForTest)
    const [first, second] = await nodes.meet({ ...submit(), fastPath: undefined }, submit())
    expect([first[0]?.kind, second[0]?.kind]).toEqual(['created', 'refused'])
  })

  test('of two uploads that fit only alone one is refused', async () => {
    const [one] = scenes()
    await nodes.a().write(setQuota(one.userId, limited(100)))
    const complete = async (name: string) => {
      const open = await opened(one, name, 60)
      if (open.kind !== 'open') throw new Error('It fits')
      return completeUpload(unbound(one), blob(open.artifact.artifactId, 60))
    }
    const [first, second] = await nodes.meet(await complete('a'), await complete('b'))
    expect([first.kind, second.kind]).toEqual(['ready', 'refused'])
    expect(await used(nodes.a(), one.userId)).toBe(60)
  })

  test('of a log and a submit that fit only alone one is cut off', async () => {
    const [one] = scenes()
    const lease = await one.running({ payload: payload(10) })
    await nodes.a().write(setQuota(one.userId, limited(150)))
    const submit = submitJobs([one.item({ payload: payload(90) })], renderForTest)
    await nodes.meet({ ...submit, fastPath: undefined }, logs(one, lease, 0, 'y'.repeat(90)))
    expect(await stored(nodes.a(), one.userId)).toBeLessThanOrEqual(150)
    expect(await used(nodes.a(), one.userId)).toBe(await stored(nodes.a(), one.userId))
  })

  /** The command has done everything but commit when the other node sets a limit, and the next submit counts. */
  async function limitedMeanwhile<T>(first: Command<T>, userId: string, submit: Command<SubmitOutcome[]>) {
    const gate = await nodes.gate()
    const one = nodes.a().write(gate.hold(first))
    await gate.reached()
    const other = (async () => {
      await nodes.b().write(setQuota(userId, limited(100)))
      return nodes.b().write(submit)
    })()
    await Promise.race([gate.someoneWaits(), other])
    await gate.open()
    await one
    return (await other)[0]
  }
  const submitOf = (scene: Scene, bytes: number) => ({
    ...submitJobs([scene.item({ payload: payload(bytes) })], renderForTest),
    fastPath: undefined,
  })

  test.each<[string, (scene: Scene, lease: Leased) => Command<unknown>]>([
    ['a submit', (scene) => submitOf(scene, 60)],
    ['a log', (scene, lease) => logs(scene, lease, 0, 'z'.repeat(60))],
  ])('%s under way is counted by the limit that is set meanwhile', async (_, command) => {
    const [one] = scenes()
    const lease = await one.running({ payload: payload(10) })
    const next = await limitedMeanwhile(command(one, lease), one.userId, submitOf(one, 40))
    expect(next).toMatchObject({ refusal: { details: { used: 70, max: 100 } } })
  })

  test('a count during a deletion leaves the deleted bytes out', async () => {
    const [one] = scenes()
    const lease = await one.running({ payload: payload(60) })
    await one.finish(lease)
    const remove = deleteJob(lease.jobId, { id: v7(), actor: 'ann' })
    expect(await limitedMeanwhile(remove, one.userId, submitOf(one, 100))).toMatchObject({ kind: 'created' })
    expect(await used(nodes.a(), one.userId)).toBe(100)
  })

  test('the leader leaves jobs of a user with a locked quota alone', async () => {
    const [one] = scenes()
    const lease = await one.running({ payload: payload(60) })
    await one.finish(lease)
    await one.age(1_000)
    const term = { holder: 'node', epoch: (await nodes.a().write(tryToLead('node', 60_000))).epoch }
    const remove = removeJobs(term, [lease.jobId], { jobMs: 1, letterMs: null })
    const [, removed] = await nodes.meet(setQuota(one.userId, limited(100)), remove)
    expect(removed.rows.get('jobs') ?? 0).toBe(0)
    expect((await nodes.a().write(remove)).rows.get('jobs')).toBe(1)
  })
})

function missing(): never {
  throw new Error('The store is open while tests run')
}
