import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { abortOperation, type Operation, runningOperations } from '../../store/operations/operations.ts'
import { countMatching } from '../../store/operations/redrive-step.ts'
import { stepOperation } from '../../store/operations/step.ts'
import type { Command, Store } from '../../store/port.ts'
import {
  begin,
  failAll,
  lead,
  letters,
  makeDead,
  makeOneDead,
  progress,
  redriver,
  retry,
  timesRetried,
} from '../../testing/store/dead-letters.ts'
import { KEY_TTL_MS, Scene } from '../../testing/store/scene.ts'
import { eachEngine, sql, until } from '../../testing/store/store.ts'

eachEngine(({ store }) => {
  const newScene = () => new Scene(store())
  const write = <T>(command: Command<T>) => store().write(command)

  /** The causes of the retries that were counted. */
  let counted: string[] = []

  /** Ticks until the redrive has ended, or until a condition holds. */
  async function drive(redrive: Operation, enough: (now: Operation) => boolean = ({ state }) => state !== 'running') {
    const tick = redriver(store(), await lead(store()), { retried: (by) => void counted.push(by) })
    return until('the redrive', async () => {
      await tick()
      const now = await progress(store(), redrive)
      return enough(now) && now
    })
  }

  describe('a redrive', () => {
    test('of a filter redrives each match once, and nothing else', async () => {
      const scene = newScene()
      const [wanted, others] = [await makeDead(scene, 5), await makeDead(scene, 3, { kind: 'other' })].slice(0, 2)
      const filter = { ...EVERY_DEAD_LETTER, userId: scene.userId, kind: 'work', text: 'IT BR' }
      expect(await store().read(countMatching(filter, null))).toBe(5)
      const begun = await write(begin(scene, { filter }))
      expect(begun).toMatchObject({ state: 'running', matched: 5, done: 0 })
      counted = []
      expect(await drive(begun)).toMatchObject({ state: 'done', matched: 5, done: 5, waiting: 0, skipped: 0 })
      expect(counted).toEqual(Array(5).fill('redrive'))
      expect([...(await timesRetried(scene)).keys()].sort()).toEqual([...(wanted ?? [])].sort())
      expect((await letters(scene)).map((row) => row.job_id).sort()).toEqual([...(others ?? [])].sort())
    })

    test('continues even if an earlier one fails', async () => {
      const scene = newScene()
      const redrives: Operation[] = []
      for (const jobId of await makeDead(scene, 2)) redrives.push(await write(begin(scene, { jobIds: [jobId] })))
      const steps: string[] = []
      /** The first step of every tick fails. */
      const failing: Store = {
        ...store(),
        write: (command) =>
          command.name === 'step_operation' && steps.push(command.name) === 1
            ? Promise.reject(new Error('held up'))
            : store().write(command),
      }
      const tick = redriver(failing, await lead(store()))
      await until('the second', async () => {
        steps.length = 0
        await expect(tick()).rejects.toThrow('held up')
        return (await Promise.all(redrives.map((one) => progress(store(), one)))).some(({ done }) => done === 1)
      })
      for (const one of redrives) expect(await drive(one)).toMatchObject({ state: 'done', done: 1 })
    })

    test('of a list takes the dead letters of the list', async () => {
      const scene = newScene()
      const [one = '', two = '', three = ''] = await makeDead(scene, 3)
      const jobIds = [one, two, two, v7()]
      expect(await store().read(countMatching({ ...EVERY_DEAD_LETTER, userId: scene.userId }, jobIds))).toBe(2)
      const begun = await write(begin(scene, { jobIds }))
      expect(begun).toMatchObject({ matched: 2, deadFilter: null })
      expect(await drive(begun)).toMatchObject({ state: 'done', done: 2 })
      expect(await letters(scene)).toMatchObject([{ job_id: three }])
    })

    test('of a user does not touch another user’s jobs, not even by id', async () => {
      const [mine, theirs] = [newScene(), newScene()]
      const jobId = await makeOneDead(theirs)
      const filter = { ...EVERY_DEAD_LETTER, userId: mine.userId }
      expect(await write(begin(mine, { filter, jobIds: [jobId] }))).toMatchObject({ matched: 0 })
      expect(await write(begin(mine, { filter }))).toMatchObject({ matched: 0 })
      expect(await letters(theirs)).toHaveLength(1)
    })

    test('of nothing is done', async () => {
      const scene = newScene()
      expect(await drive(await write(begin(scene)))).toMatchObject({ state: 'done', matched: 0, done: 0 })
    })

    test('leaves dead letters of another redrive alone until that is aborted', async () => {
      const scene = newScene()
      await makeDead(scene, 3)
      const first = await drive(await write(begin(scene)), ({ prepared }) => prepared)
      expect(await driveAlone(await write(begin(scene)))).toMatchObject({ state: 'done', matched: 0 })
      await write(abortOperation(first.operationId, 'tester', v7()))
      const second = await write(begin(scene))
      expect(second).toMatchObject({ matched: 3 })
      expect(await drive(second)).toMatchObject({ done: 3 })
    })

    test('skips jobs that were retried meanwhile or lost their key', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene)
      const keyed = await makeOneDead(scene, { key: 'k' })
      await scene.age(KEY_TTL_MS + 1)
      const taker = await scene.submitted({ key: 'k' })
      const begun = await drive(await write(begin(scene)), ({ prepared }) => prepared)
      expect(begun).toMatchObject({ matched: 2 })
      await write(retry(jobId))
      expect(await drive(begun)).toMatchObject({ state: 'done', done: 0, skipped: 2 })
      expect(await letters(scene)).toMatchObject([{ job_id: keyed, redrive_id: null }])
      expect(await scene.state(taker)).toBe('PENDING')
      expect([...(await timesRetried(scene)).entries()]).toEqual([[jobId, 1]])
    })

    test('that is aborted stops, keeps its work, and is recorded', async () => {
      const scene = newScene()
      await makeDead(scene, 40)
      const begun = await write(begin(scene, { perSecond: 20 }))
      const some = await drive(begun, ({ done }) => done > 0)
      const aborted = await write(abortOperation(begun.operationId, 'somebody', v7()))
      expect(aborted).toMatchObject({ state: 'aborted', done: some.done, endedAtMs: expect.any(Number) })
      const tick = redriver(store(), await lead(store()))
      for (let i = 0; i < 3; i++) await tick()
      expect(await progress(store(), begun)).toEqual(aborted)
      expect(await letters(scene)).toHaveLength(40 - some.done)
      expect(await write(abortOperation(begun.operationId, 'somebody', v7()))).toBeNull()
      const audit = 'SELECT actor, action FROM ichido.audit WHERE subject = $1 ORDER BY id'
      expect(await sql(store(), audit, begun.operationId)).toEqual([
        { actor: 'tester', action: 'redrive.begin' },
        { actor: 'somebody', action: 'redrive.abort' },
      ])
    })

    test('keeps to its pace', async () => {
      const scene = newScene()
      await makeDead(scene, 12)
      const began = performance.now()
      // Five batches of two: the last one may begin four pauses of a quarter of a second after the first.
      expect(await drive(await write(begin(scene, { perSecond: 8 })))).toMatchObject({ done: 12 })
      const tookMs = performance.now() - began
      expect(tookMs).toBeGreaterThan(1_200)
    })

    test('is not stopped by a clock that was set back', async () => {
      const scene = newScene()
      await makeDead(scene, 2)
      const begun = await drive(await write(begin(scene)), ({ prepared }) => prepared)
      await sql(store(), 'UPDATE ichido.operations SET next_at = now_ms() + 600000 WHERE id = $1', begun.operationId)
      expect(await drive(begun)).toMatchObject({ state: 'done', done: 2 })
    })

    test('continues after a crash, under another leader', async () => {
      const scene = newScene()
      const dead = await makeDead(scene, 30)
      const begun = await write(begin(scene, { perSecond: 40 }))
      const some = await drive(begun, ({ done }) => done > 0)
      expect(some.done).toBeLessThan(30)
      const before = await lead(store())
      await expect(crashing(stepOf(some, before))).rejects.toThrow('crash')
      expect(await progress(store(), begun)).toEqual(some)
      expect(await drive(begun)).toMatchObject({ state: 'done', done: 30 })
      const times = await timesRetried(scene)
      expect([times.size, ...new Set(times.values())]).toEqual([dead.length, 1])
    })

    test('of a former leader takes no step', async () => {
      const scene = newScene()
      await makeDead(scene, 2)
      const begun = await drive(await write(begin(scene)), ({ prepared }) => prepared)
      const past = await lead(store())
      await lead(store())
      expect(await write(stepOf(begun, past))).toMatchObject({ retried: [], ended: false })
      expect(await progress(store(), begun)).toEqual(begun)
    })
  })

  test('of 10,000, while new ones arrive and old ones die again: each once', async () => {
    const scene = newScene()
    const dead = await makeDead(scene, size(150, 10_000))
    const begun = await write(begin(scene, { perSecond: size(400, 5_000) }))
    const tick = redriver(store(), await lead(store()))
    const late: string[] = []
    do {
      for (let i = 0; i < 4; i++) await tick()
      // Redriven jobs die again at once, and so does a new job: both dead letters came too late.
      const fresh = await scene.submitted()
      late.push(fresh)
      await scene.age(0)
      await failAll(scene)
    } while ((await progress(store(), begun)).state !== 'done')
    const times = await timesRetried(scene)
    expect(times.size).toBe(dead.length)
    expect(new Set(times.values())).toEqual(new Set([1]))
    expect(late.filter((jobId) => times.has(jobId))).toEqual([])
    expect(await progress(store(), begun)).toMatchObject({ done: dead.length, skipped: 0 })
  })

  async function driveAlone(redrive: Operation): Promise<Operation> {
    const term = await lead(store())
    let now = redrive
    while (now.state === 'running') {
      await write(stepOf(now, term))
      now = await progress(store(), now)
    }
    return now
  }

  function stepOf({ operationId, version }: Operation, term: Awaited<ReturnType<typeof lead>>) {
    return stepOperation(term, { operationId, version, nextRunIds: [v7(), v7()], auditId: v7(), leased: [] })
  }

  function crashing<T>(command: Command<T>): Promise<T> {
    return write({
      name: command.name,
      *work(again) {
        yield* command.work(again)
        throw new Error('crash')
      },
    })
  }

  test('only running redrives are read', async () => {
    const scene = newScene()
    const begun = await write(begin(scene))
    const ids = async () => (await store().read(runningOperations(100))).map(({ operationId }) => operationId)
    expect(await ids()).toContain(begun.operationId)
    await drive(begun)
    expect(await ids()).not.toContain(begun.operationId)
  })
})
