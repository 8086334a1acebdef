import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { IchidoError } from '../../../protocol/index.ts'
import type { WorkerEvent } from '../../loop/ports.ts'
import { Pump } from '../../loop/pump.ts'
import { nodeWorld } from '../world.ts'
import { RunProgress } from './output.ts'
import { publishAll } from './run-output.ts'

/** The signal of a run that is not stopped. */
const RUNNING = new AbortController().signal

let folder: string
let file: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-progress-'))
  file = join(folder, 'progress')
  writeFileSync(file, '')
})
afterEach(() => rmSync(folder, { recursive: true }))

/** Carries all that is in the file; how often something else had its turn meanwhile. */
async function carryAll(onBadLine: (line: string) => void): Promise<{ events: WorkerEvent[]; turns: number }> {
  const progress = new RunProgress(file, null, onBadLine)
  const events: WorkerEvent[] = []
  let turns = 0
  let isDone = false
  const turn = () => {
    turns++
    if (!isDone) setImmediate(turn)
  }
  setImmediate(turn)
  const pump = new Pump<WorkerEvent[]>({
    world: nodeWorld,
    read: (last) => progress.read(last),
    async send(batch) {
      events.push(...batch)
    },
    onTrouble(error) {
      throw error
    },
  })
  await pump.end(RUNNING)
  isDone = true
  return { events, turns }
}

test.each([
  ['no JSON', 'x\n'.repeat(20_000), 20_000],
  ['empty lines', '\n'.repeat(500_000), 0],
  ['a line without end', 'y'.repeat(5_000_000), 39],
])('much invalid progress, %s, neither ends nor blocks the agent', async (_, much, badLines) => {
  appendFileSync(file, `${much}\n{"a":1}\n"last"`)
  let bad = 0
  const { events, turns } = await carryAll(() => bad++)
  expect(events.map(({ seq, data }) => [seq, data])).toEqual([
    [1, { a: 1 }],
    [2, 'last'],
  ])
  expect(bad).toBe(badLines)
  expect(turns).toBeGreaterThan(15)
})

test('one read takes only a limited piece', () => {
  appendFileSync(file, 'x\n'.repeat(50_000))
  let bad = 0
  const progress = new RunProgress(file, null, () => bad++)
  expect(progress.read(false)).toEqual([])
  expect(bad).toBeGreaterThan(0)
  expect(bad).toBeLessThan(1_000)
})

test('a refused event does not prevent the others of its call', async () => {
  const events = ['a', 'my stage!', 'b'].map((stage, seq) => ({ stage, seq, data: null }))
  const heard: WorkerEvent[] = []
  const refused: string[][] = []
  const publish = async (some: readonly WorkerEvent[]) => {
    if (some.some(({ stage }) => stage.includes(' '))) throw new IchidoError('INVALID_PAYLOAD', 'a bad name')
    heard.push(...some)
  }
  await publishAll(events, publish, (...told) => refused.push(told))
  expect(heard.map(({ stage }) => stage)).toEqual(['a', 'b'])
  expect(refused).toEqual([['{"stage":"my stage!","seq":1,"data":null}', 'a bad name']])
  const lost = async () => {
    throw new IchidoError('LEASE_LOST')
  }
  await expect(publishAll(events, lost, () => {})).rejects.toThrow(IchidoError)
})
