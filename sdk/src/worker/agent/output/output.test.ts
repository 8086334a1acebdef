import { appendFileSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { FakeWorld, settled } from '../../../../../scripts/testing/fake-world.ts'
import { ECO2_STAGES, IchidoError } from '../../../protocol/index.ts'
import { Pump } from '../../loop/pump.ts'
import { RunLog, RunProgress } from './output.ts'

/** The signal of a run that is not stopped. */
const RUNNING = new AbortController().signal

let folder: string
let out: string
let err: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-output-'))
  out = join(folder, 'out')
  err = join(folder, 'err')
  for (const file of [out, err]) writeFileSync(file, '')
})
afterEach(() => rmSync(folder, { recursive: true }))

test('the output of both streams comes once, numbered, in whole characters', () => {
  const log = new RunLog(out, err, join(folder, 'place'))
  expect(log.read()).toBeNull()
  const euro = Buffer.from('€')
  appendFileSync(out, Buffer.concat([Buffer.from('one '), euro.subarray(0, 1)]))
  appendFileSync(err, 'bad\0\n')
  expect(log.read()).toEqual([
    { n: 0, stream: 'stdout', text: 'one ' },
    { n: 1, stream: 'stderr', text: 'bad\ufffd\n' },
  ])
  appendFileSync(out, euro.subarray(1))
  expect(log.read()).toEqual([{ n: 2, stream: 'stdout', text: '€' }])
  expect(log.read()).toBeNull()
})

test('endless output fills neither the log nor the disk', () => {
  const log = new RunLog(out, err, join(folder, 'place'))
  let bytes = 0
  for (let part = 0; part < 200; part++) {
    appendFileSync(out, 'x'.repeat(64 * 1024))
    for (const { text } of log.read() ?? []) bytes += text.length
  }
  expect(bytes).toBeGreaterThan(8 * 1024 * 1024)
  expect(bytes).toBeLessThan(9 * 1024 * 1024)
  expect(statSync(out).size).toBeLessThan(9 * 1024 * 1024)
})

test('at most 20 notes are lines on stderr, and appear once over several processes', () => {
  const place = join(folder, 'place')
  const log = new RunLog(out, err, place)
  appendFileSync(err, 'no end')
  log.note('one')
  log.note('two')
  expect(log.read()).toEqual([
    { n: 0, stream: 'stderr', text: 'no end' },
    { n: 1, stream: 'stderr', text: '\n[one]\n[two]\n' },
  ])
  log.note('three')
  const next = new RunLog(out, err, place)
  expect(next.read()).toHaveLength(2)
  for (const line of ['one', 'two', 'three']) next.note(line)
  expect(next.read()).toEqual([{ n: 2, stream: 'stderr', text: '[three]\n' }])
  for (let count = 0; count < 100; count++) next.note('more')
  expect(next.read()).toEqual([{ n: 3, stream: 'stderr', text: '[more]\n'.repeat(17) }])
  expect(next.read()).toBeNull()
})

test('JSON lines are progress; others are reported; the last needs no newline', () => {
  const bad: string[] = []
  const progress = new RunProgress(out, null, (line) => bad.push(line))
  appendFileSync(out, '{"a":1}\n\nnonsense\n[2]\n{"half"')
  expect(progress.read(false)).toEqual([
    { stage: 'progress', seq: 1, data: { a: 1 } },
    { stage: 'progress', seq: 2, data: [2] },
  ])
  expect(progress.read(false)).toBeNull()
  appendFileSync(out, ':3}\n"last"')
  expect(progress.read(false)).toEqual([{ stage: 'progress', seq: 3, data: { half: 3 } }])
  expect(progress.read(true)).toEqual([{ stage: 'progress', seq: 4, data: 'last' }])
  expect(progress.read(true)).toBeNull()
  expect(bad).toEqual(['nonsense'])
})

test('many lines are sent in batches; an endless line is no progress', () => {
  const bad: string[] = []
  const progress = new RunProgress(out, null, (line) => bad.push(line))
  appendFileSync(out, Array.from({ length: 250 }, (_, i) => `${i}\n`).join(''))
  const batches = [progress.read(false), progress.read(false), progress.read(false), progress.read(false)]
  expect(batches.map((batch) => batch?.length)).toEqual([100, 100, 50, undefined])
  expect(batches.flatMap((batch) => batch ?? []).map(({ data }) => data)).toEqual(
    Array.from({ length: 250 }, (_, i) => i),
  )
  appendFileSync(out, 'y'.repeat(200_000))
  expect(progress.read(false)).toBeNull()
  expect(bad.length).toBeGreaterThan(0)
})

test('a pump sends in order, retries a batch, and skips a refused one', async () => {
  const world = new FakeWorld()
  const queue: number[] = [1, 2, 3]
  const sent: number[] = []
  const errors: Error[] = [new IchidoError('UNAVAILABLE'), new IchidoError('PAYLOAD_TOO_LARGE')]
  const pump = new Pump({
    world,
    read: () => queue.shift() ?? null,
    async send(batch) {
      sent.push(batch)
      const error = errors.shift()
      if (error !== undefined) throw error
    },
    onTrouble() {},
  })
  await world.pass(5_000)
  expect(sent).toEqual([1, 1, 2, 3])
  queue.push(4)
  await pump.end(RUNNING)
  expect(sent).toEqual([1, 1, 2, 3, 4])
})

/** A pump with one batch, whose call succeeds when the test says so. */
function unheard() {
  const world = new FakeWorld()
  const queue: number[] = [1]
  const plane = { isAway: true, heard: [] as number[] }
  const send = async (batch: number) => {
    if (plane.isAway) throw new IchidoError('UNAVAILABLE')
    plane.heard.push(batch)
  }
  const pump = new Pump({ world, read: () => queue.shift() ?? null, send, onTrouble() {} })
  const ended: boolean[] = []
  const end = (signal: AbortSignal) => void pump.end(signal).then((heard) => ended.push(heard))
  return { world, plane, ended, end }
}

test('output from before the end is sent through any outage', async () => {
  const { world, plane, ended, end } = unheard()
  end(RUNNING)
  await world.pass(3_600_000)
  expect(ended).toEqual([])
  plane.isAway = false
  await world.pass(2_000)
  expect([plane.heard, ended]).toEqual([[1], [true]])
  expect(world.pendingMs).toEqual([])
})

test('end() returns false when the time is up', async () => {
  const { world, ended, end } = unheard()
  const late = new AbortController()
  end(late.signal)
  await world.pass(60_000)
  expect(ended).toEqual([])
  late.abort()
  await settled()
  expect(ended).toEqual([false])
})

test('a call without an answer does not delay end() when the time is up', async () => {
  const stopping = new AbortController()
  const read = vi.fn().mockReturnValueOnce(1).mockReturnValue(null)
  const pump = new Pump({ world: new FakeWorld(), read, send: () => new Promise(() => {}), onTrouble() {} })
  const ended = pump.end(stopping.signal)
  await settled()
  stopping.abort()
  expect(await ended).toBe(false)
})

test('lines can be events of declared stages', () => {
  const bad: string[] = []
  const progress = new RunProgress(out, ECO2_STAGES, (_, why) => bad.push(why))
  appendFileSync(out, '{"stage":"vision","sub":1,"data":[1]}\n{"stage":"done","sub":0}\n{"stage":"vision","sub":10}\n')
  appendFileSync(out, '{"percent":5}\n{"stage":"vision","seq":11}\n{"stage":"other"}\n{"stage"\n')
  expect(progress.read(false)).toEqual([
    { stage: 'vision', seq: 11, data: [1] },
    { stage: 'done', seq: 50, data: null },
    { stage: 'progress', seq: 1, data: { percent: 5 } },
    { stage: 'progress', seq: 2, data: { stage: 'other' } },
  ])
  expect(bad).toEqual([
    'the stage vision has the numbers 0 to 9, not 10',
    'it names the stage vision without "sub", the number in the stage from 0',
    'it is not JSON',
  ])
})
