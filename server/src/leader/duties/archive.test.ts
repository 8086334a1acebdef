import { readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import * as realFiles from 'node:fs/promises'
import { join } from 'node:path'
import { gunzipSync, gzipSync } from 'node:zlib'
import type { RunLogShape } from '@ichido/sdk/protocol'
import { v7 } from 'uuid'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Files, openLogArchive } from '../../log-archive/disk.ts'
import { LOG_SHARDS, type LogArchive, logRefOf } from '../../log-archive/port.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Meter, silentMeter } from '../../services/system/meter.ts'
import { archiveLog, forgetLogs } from '../../store/logs/archive-logs.ts'
import { command, type Store } from '../../store/port.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import {
  beginWriting,
  leaseWriting,
  pagesOf,
  type TestArchive,
  testArchive,
  textOf,
} from '../../testing/services/logs.ts'
import { ENGINES, type TestServices, testServices } from '../../testing/services/services.ts'
import { settingsOf } from '../../testing/store/retention.ts'
import { text } from '../../testing/store/rows.ts'
import { only } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { createArchive } from './archive.ts'

const DAY_MS = 24 * 3_600_000

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestServices
  let place: TestArchive
  const store = () => opened.services.deps.store
  const services = () => opened.services
  beforeAll(async () => {
    opened = await testServices(engine)
  })
  beforeEach(async () => {
    place = await testArchive()
    services().deps.logArchive = place.logArchive
    await sql(store(), 'DELETE FROM ichido.run_logs')
  })
  afterEach(() => place.remove())
  afterAll(() => opened.close())

  interface Changes {
    logArchive?: LogArchive
    store?: Store
    days?: number
    batchMax?: number
    meter?: Meter
  }

  /** The duty of a new leader. */
  async function archiver({ days = 7, batchMax = 20, meter = silentMeter, ...changes }: Changes = {}) {
    const settings = settingsOf({ log_retention_days_db: days, archive_batch_max: batchMax })
    const leading = trusting(await seize(store()))
    const given = { world: realWorld, store: store(), logArchive: place.logArchive, settings, meter, ...changes }
    return createArchive(given, leading)
  }

  /** A job whose run ended so many days ago and wrote this. */
  async function written(days: number, ...texts: string[]) {
    const run = await beginWriting(services())
    for (const text of texts) await run.write(text)
    await run.succeed()
    await age(run.runId, days)
    return run
  }

  async function age(runId: string, days: number): Promise<void> {
    const ms = days * DAY_MS
    await sql(store(), 'UPDATE ichido.run_logs SET created_at = created_at - $2 WHERE run_id = $1', runId, ms)
    await sql(store(), 'UPDATE ichido.runs SET finished_at = finished_at - $2 WHERE id = $1', runId, ms)
  }

  const rows = (runId: string) =>
    sql(store(), 'SELECT n, chunk, log_ref, end_bytes FROM ichido.run_logs WHERE run_id = $1 ORDER BY n', runId)
  const isArchived = async (runId: string) => (await rows(runId)).every(({ chunk }) => chunk === null)

  test('a log moves to a file after its days in the store; with 0 it stays', async () => {
    const [old, young] = [await written(8, 'a', 'b\n', 'c'), await written(6, 'young')]
    const running = await beginWriting(services())
    await running.write('it writes')
    await sql(store(), 'UPDATE ichido.run_logs SET created_at = 0 WHERE run_id = $1', running.runId)
    const counted: number[][] = []
    const meter = { ...silentMeter, logArchived: (...bytes: number[]) => void counted.push(bytes) }

    await (await archiver({ days: 0, meter }))()
    expect([await isArchived(old.runId), counted]).toEqual([false, []])
    expect(await (await archiver({ meter }))()).toBeNull()
    const [file = ''] = place.files()
    expect(await rows(old.runId)).toEqual([{ n: 2, chunk: null, log_ref: file, end_bytes: 4 }])
    expect(counted).toEqual([[4, realSize(file)]])
    expect(file).toBe(`logs/${old.runId.slice(-2)}/${old.runId}.${file.slice(-45, -9)}.jsonl.gz`)
    const lines = gunzipSync(readFileSync(join(place.folder, file)))
      .toString()
      .trimEnd()
      .split('\n')
    expect(lines.map((line) => JSON.parse(line).text)).toEqual(['a', 'b\n', 'c'])
    expect([await isArchived(young.runId), await isArchived(running.runId)]).toEqual([false, false])
    await (await archiver())()
    expect(place.files()).toEqual([file])
  })

  const realSize = (file: string) => readFileSync(join(place.folder, file)).length

  test('archives a batch, oldest first, and continues at once', async () => {
    const runs = [await written(10, 'a'), await written(9, 'b'), await written(8, 'c')]
    const tick = await archiver({ batchMax: 2 })
    expect(await tick()).toBe(0)
    expect(await Promise.all(runs.map(({ runId }) => isArchived(runId)))).toEqual([true, true, false])
    expect(await tick()).toBeNull()
    expect(place.files()).toHaveLength(3)
  })

  test('rows of older nodes are archived like others', async () => {
    const run = await written(8, 'a', 'b', 'c')
    await sql(store(), 'UPDATE ichido.run_logs SET head = true')
    await (await archiver())()
    expect(await rows(run.runId)).toMatchObject([{ n: 2, chunk: null }])
    await (await archiver())()
    expect(place.files()).toHaveLength(1)
  })

  test('a log reads the same before and after archiving, in every way', async () => {
    const queue = unique('q')
    const first = await beginWriting(services(), queue)
    await first.write('one\n', 'tw', 'o\nthree\n', '\u2028 x\r\n', '"quoted"\\\n')
    await first.fail(true)
    const second = await leaseWriting(services(), queue)
    await second.write('second run\n')
    await second.fail(false)
    await age(first.runId, 9)
    await age(second.runId, 8)

    const look = async () => {
      const all = await pagesOf(services(), first.jobId, 2)
      const after = (one: RunLogShape) => ({ after: `${one.run_no}.${one.n}` })
      const follow = async (beginning: { after: string }) => {
        const steps: unknown[] = []
        const { signal } = new AbortController()
        for await (const step of await services().logs.follow(LOCAL_ADMIN, first.jobId, beginning, signal))
          steps.push(step)
        return steps
      }
      return {
        all,
        pages: await Promise.all([1, 3, 200].map((limit) => pagesOf(services(), first.jobId, limit))),
        texts: await Promise.all(all.map((one) => textOf(services(), first.jobId, after(one)))),
        tails: await Promise.all([1, 2, 3, 5, 100].map((tail) => textOf(services(), first.jobId, { tail }))),
        followed: await Promise.all(all.map((one) => follow(after(one)))),
      }
    }
    const before = await look()
    expect(before.all.map(({ text }) => text).join('')).toBe('one\ntwo\nthree\n\u2028 x\r\n"quoted"\\\nsecond run\n')
    expect(before.tails.slice(0, 3)).toEqual([
      'second run\n',
      '"quoted"\\\nsecond run\n',
      '\u2028 x\r\n"quoted"\\\nsecond run\n',
    ])
    expect(before.followed.at(-1)).toEqual([{ kind: 'end', state: 'FAILED' }])
    // One of them, then both.
    const tick = await archiver({ batchMax: 1 })
    for (const count of [1, 2]) {
      await tick()
      expect(place.files()).toHaveLength(count)
      expect(await look()).toEqual(before)
    }
  })

  test('a reader in the middle of a log does not notice that it is archived', async () => {
    const texts = Array.from({ length: 250 }, (_, i) => `line ${i}\n`)
    const run = await written(8)
    const writing = await beginWriting(services())
    await writing.write(...texts)
    await writing.succeed()
    await age(writing.runId, 8)
    const reading = await services().logs.readAll(LOCAL_ADMIN, writing.jobId, { after: null })
    let all = ''
    for await (const { text } of reading) {
      all += text
      if (all.length === 'line 0\n'.length) await (await archiver())()
    }
    expect(await isArchived(writing.runId)).toBe(true)
    expect(all).toBe(texts.join(''))
    // One that reads it from its end.
    const tailed = await beginWriting(services())
    await tailed.write(...texts)
    await tailed.succeed()
    await age(tailed.runId, 8)
    const whole = store()
    let looks = 0
    const read: Store['read'] = async (command) => {
      if (command.name === 'find_logs' && ++looks === 2) await (await archiver({ store: whole }))()
      return whole.read(command)
    }
    services().deps.store = { ...whole, read }
    const tail = await textOf(services(), tailed.jobId, { tail: 10_000 })
    services().deps.store = whole
    expect([tail, await isArchived(tailed.runId)]).toEqual([texts.join(''), true])
    await whole.write(command('forget', () => forgetLogs(JSON.stringify([tailed.jobId]), 100)))
    await sweepAll(0)
    // And one that has the file open when it goes with its job.
    const another = await services().logs.readAll(LOCAL_ADMIN, writing.jobId, { after: null })
    await another.next()
    await store().write(command('forget', () => forgetLogs(JSON.stringify([writing.jobId, run.jobId]), 100)))
    rmSync(join(place.folder, only(place.files())))
    let count = 1
    for await (const _ of another) count++
    expect(count).toBe(250)
    expect(await pagesOf(services(), writing.jobId, 100)).toEqual([])
  })

  describe('interrupted at any step', () => {
    class Broken extends Error {}

    /**
     * Every call of a function of this object is a step; the step with this number fails, before or after it is done.
     */
    function breaking<T extends object>(
      object: T,
      names: readonly string[],
      step: (name: string, isDone: boolean) => boolean,
    ): T {
      return new Proxy(object, {
        get(target, name) {
          const value: unknown = Reflect.get(target, name)
          if (typeof value !== 'function' || !names.includes(String(name))) {
            return typeof value === 'function' ? value.bind(target) : value
          }
          return async (...args: unknown[]) => {
            if (step(String(name), false)) throw new Broken()
            const answer: unknown = await value.apply(target, args)
            const handle = isHandle(answer) ? answer : null
            if (step(String(name), true)) {
              await handle?.close()
              throw new Broken()
            }
            return handle === null ? answer : breaking(handle, ['writeFile', 'sync', 'stat'], step)
          }
        },
      })
    }

    function isHandle(value: unknown): value is realFiles.FileHandle {
      return typeof value === 'object' && value !== null && 'datasync' in value
    }

    test('the file and its name are on disk before the store names it', async () => {
      await written(8, 'a\n')
      const done: string[] = []
      const step = (name: string, isDone: boolean) => {
        if (isDone) done.push(name)
        return false
      }
      const files = breaking<Files>({ ...realFiles }, ['open', 'rename'], step)
      const logArchive = await openLogArchive({ folder: place.folder, world: realWorld, files })
      await (await archiver({ logArchive, store: breaking(store(), ['write'], step) }))()
      const last = done.slice(done.indexOf('writeFile'))
      expect(last).toEqual(['writeFile', 'sync', 'stat', 'rename', 'open', 'sync', 'write'])
    })

    test('nothing is lost, and in the end one file is left', async () => {
      const run = await written(8, 'a\n', 'b\n', 'c\n')
      const before = await pagesOf(services(), run.jobId, 10)
      let outcome: unknown
      let broken = 0
      do {
        let left = Number.POSITIVE_INFINITY
        const step = () => --left === 0
        // A process that dies removes nothing of what it leaves.
        const kept = { ...realFiles, rm: async () => {} }
        const files = breaking<Files>(kept, ['mkdir', 'open', 'rename'], step)
        const logArchive = await openLogArchive({ folder: place.folder, world: realWorld, files })
        const tick = await archiver({ logArchive, store: breaking(store(), ['read', 'write'], step) })
        left = ++broken
        outcome = await tick().catch((error: unknown) => error)
        expect(await pagesOf(services(), run.jobId, 10)).toEqual(before)
      } while (outcome instanceof Broken)
      expect(outcome).toBeNull()
      expect(broken).toBeGreaterThan(20)
      expect(await rows(run.runId)).toMatchObject([{ n: 2, chunk: null }])
      expect(place.files().length).toBeGreaterThan(10)
      await sweepAll(2 * DAY_MS)
      expect(place.files()).toEqual([text(only(await rows(run.runId)), 'log_ref')])
      expect(await pagesOf(services(), run.jobId, 10)).toEqual(before)
    })
  })

  /** Checks all subfolders, that much later. */
  async function sweepAll(laterMs: number): Promise<void> {
    const world = { ...realWorld, now: () => realWorld.now() + laterMs }
    const tick = await archiver({ logArchive: await openLogArchive({ folder: place.folder, world }), days: 0 })
    for (let shard = 0; shard < LOG_SHARDS; shard += 4) await tick()
  }

  describe('two leaders at once', () => {
    const many = Array.from({ length: 150 }, (_, i) => `${i}\n`)

    async function long() {
      const run = await beginWriting(services())
      await run.write(...many)
      await run.succeed()
      await age(run.runId, 8)
      return run
    }

    /** A store that waits after it has carried out so many commands of this name. */
    function pausing(name: string, count: number) {
      const [reached, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      let left = count
      const pause = async (command: { name: string }) => {
        if (command.name !== name || left-- !== 0) return
        reached.resolve()
        await goOn.promise
      }
      const slow: Store = {
        ...store(),
        async read(command) {
          await pause(command)
          return store().read(command)
        },
        async write(command) {
          await pause(command)
          return store().write(command)
        },
      }
      return { slow, reached: reached.promise, goOn: goOn.resolve }
    }

    test.each([
      ['while it reads', 'find_run_log', 1, /archived by another node/],
      ['before it names its file', 'archive_log', 0, null],
    ])('a leader that sleeps %s does not damage the file of the next', async (_, name, count, trouble) => {
      const run = await long()
      const { slow, reached, goOn } = pausing(name, count)
      const asleep = (await archiver({ store: slow }))()
      await reached
      await (await archiver())()
      const named = await rows(run.runId)
      goOn()
      if (trouble === null) await asleep
      else await expect(asleep).rejects.toThrow(trouble)
      expect(await rows(run.runId)).toEqual(named)
      expect(await textOf(services(), run.jobId)).toBe(many.join(''))
      await sweepAll(2 * DAY_MS)
      expect(place.files()).toEqual([text(only(named), 'log_ref')])
      expect(await textOf(services(), run.jobId)).toBe(many.join(''))
    })

    test('in one term, too: one of them names its file', async () => {
      const run = await long()
      const counted: number[] = []
      const meter = { ...silentMeter, logArchived: (bytes: number) => void counted.push(bytes) }
      const tick = await archiver({ meter })
      await Promise.allSettled([tick(), tick(), tick()])
      expect(counted).toEqual([many.join('').length])
      expect(await textOf(services(), run.jobId)).toBe(many.join(''))
    })
  })

  test('the log of a running run is not archived, and an ended one does not grow', async () => {
    const run = await beginWriting(services())
    await run.write('a')
    const term = await seize(store())
    const item = { runId: run.runId, lastN: 0, logRef: logRefOf({ runId: run.runId, fileId: v7() }) }
    expect(await store().write(archiveLog(term, item))).toBe(false)
    await run.write('b')
    await run.succeed()
    await expect(run.write('c')).rejects.toMatchObject({ code: 'ALREADY_ENDED' })
    // As it was when the file was written, and as it is.
    expect(await store().write(archiveLog(term, item))).toBe(false)
    expect(await store().write(archiveLog(await seize(store()), { ...item, lastN: 1 }))).toBe(true)
    expect(await store().write(archiveLog(term, { ...item, lastN: 1 }))).toBe(false)
  })

  describe('a file', () => {
    const unreadable = async (jobId: string, words: RegExp) => {
      const refused = { code: 'LOG_UNAVAILABLE', message: expect.stringMatching(words) }
      const { logs } = services()
      await expect(logs.read(LOCAL_ADMIN, jobId, { after: null }, 10)).rejects.toMatchObject(refused)
      await expect(logs.read(LOCAL_ADMIN, jobId, { tail: 1 }, 10)).rejects.toMatchObject(refused)
      await expect(textOf(services(), jobId)).rejects.toMatchObject(refused)
    }

    async function archived() {
      const { jobId, runId } = await written(8, 'a\n', 'b\n')
      await (await archiver())()
      return { jobId, runId, path: join(place.folder, only(place.files())) }
    }

    test('that is missing, incomplete, damaged or of another log is reported', async () => {
      const { jobId, path, runId } = await archived()
      const bytes = readFileSync(path)
      truncateSync(path, bytes.length - 9)
      await unreadable(jobId, /^The file logs\/.* is damaged$/)
      writeFileSync(path, bytes.with(15, 255).with(16, 255))
      await unreadable(jobId, /is damaged$/)
      writeFileSync(path, gzipSync('{"n":0,"stream":"stdout","created_at":1,"text":"a"}\n'))
      await unreadable(jobId, /is incomplete$/)
      rmSync(path)
      await unreadable(jobId, /is missing$/)
      writeFileSync(path, bytes)
      expect(await textOf(services(), jobId)).toBe('a\nb\n')
      for (const ref of ['../../etc/passwd', `logs/00/${v7()}.${v7()}.jsonl.gz`, '']) {
        await sql(store(), 'UPDATE ichido.run_logs SET log_ref = $2 WHERE run_id = $1', runId, ref)
        await unreadable(jobId, /cannot read$/)
      }
    })

    test('that is not needed is removed: with its run, or a day after a crash', async () => {
      const [kept, gone] = [await archived(), await written(8, 'gone')]
      await (await archiver())()
      const stray = { runId: gone.runId, fileId: v7() }
      const strayOfKept = { runId: kept.runId, fileId: v7() }
      async function* nothing() {}
      for (const file of [stray, strayOfKept]) await place.logArchive.write(file, nothing())
      writeFileSync(`${join(place.folder, logRefOf({ ...kept, fileId: v7() }))}.partial`, '')
      expect(place.files()).toHaveLength(5)
      await sweepAll(0)
      expect(place.files()).toHaveLength(5)
      await store().write(command('forget', () => forgetLogs(JSON.stringify([gone.jobId]), 100)))
      await sweepAll(0)
      expect(place.files()).toHaveLength(3)
      await sweepAll(DAY_MS + 60_000)
      expect(place.files().map((name) => join(place.folder, name))).toEqual([kept.path])
    })
  })
})
