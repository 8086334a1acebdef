import { appendFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../../scripts/testing/fake-world.ts'
import type { LogChunk } from '../../loop/ports.ts'
import { LEASE, Plane, unavailable } from '../../testing/plane.ts'
import { type RunFolder, RunFolders } from '../process/run-folder.ts'
import { RunOutput } from './run-output.ts'

let root: string
let folder: RunFolder
let world: FakeWorld
let plane: Plane
let isAway: boolean
let logged: LogChunk[]
let troubles: string[]
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ichido-run-output-'))
  folder = new RunFolders(root, true).make(LEASE)
  world = new FakeWorld()
  plane = new Plane()
  isAway = false
  logged = []
  troubles = []
})
afterEach(() => rmSync(root, { recursive: true }))

/** Ends at once; whether it has ended is told later. */
function end(signal: AbortSignal): { isOver: boolean } {
  const transport = Object.assign(plane, {
    async log(_: string, chunks: readonly LogChunk[]) {
      if (isAway) throw unavailable()
      logged.push(...chunks)
    },
  })
  const onTrouble = (error: unknown) => void troubles.push(error instanceof Error ? error.message : String(error))
  const ending = { isOver: false }
  const output = new RunOutput(LEASE, folder, { transport, world, onTrouble })
  void output.end(signal).then(() => {
    ending.isOver = true
  })
  return ending
}

test('a stop ends the wait; after an earlier stop it is short; both are reported', async () => {
  appendFileSync(folder.stdoutFile, 'one\n')
  isAway = true
  const stopping = new AbortController()
  const hurried = end(stopping.signal)
  await world.pass(60_000)
  expect(hurried.isOver).toBe(false)
  stopping.abort()
  await settled()
  expect(hurried.isOver).toBe(true)
  const stopped = end(stopping.signal)
  await world.pass(9_999)
  expect(stopped.isOver).toBe(false)
  await world.pass(1)
  expect(stopped.isOver).toBe(true)
  expect(troubles.filter((words) => words !== 'down')).toEqual(
    Array(2).fill('The end of the log or progress of job job could not be delivered'),
  )
  expect(world.pendingMs).toEqual([])
})

test('progress that cannot be published is noted in the log of the job', async () => {
  appendFileSync(folder.stderrFile, 'working\n')
  appendFileSync(folder.progressFile, '{"step":1}\n50 %\n{"half')
  end(new AbortController().signal)
  await settled()
  expect(plane.published.flat()).toEqual([['progress', 1, { step: 1 }]])
  expect(logged.map(({ text }) => text).join('')).toBe(
    'working\n' +
      '[Progress cannot be published, because it is not JSON: 50 %]\n' +
      '[Progress cannot be published, because it is not JSON: {"half]\n',
  )
  expect(new Set(logged.map(({ stream }) => stream))).toEqual(new Set(['stderr']))
  expect(troubles).toHaveLength(2)
})
