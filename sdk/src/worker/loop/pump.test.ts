import { execFileSync } from 'node:child_process'
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { Tail } from '../agent/output/output.ts'
import { Pump } from './pump.ts'

/** The signal of a run that is not stopped. */
const RUNNING = new AbortController().signal

let folder: string
let file: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-pump-'))
  file = join(folder, 'file')
  writeFileSync(file, 'one')
})
afterEach(() => rmSync(folder, { recursive: true }))

test('a removed file yields nothing, and a new one is read from its start', () => {
  const tail = new Tail(file)
  expect(tail.read(100)).toBe('one')
  rmSync(file)
  expect(tail.read(100)).toBe('')
  tail.discard()
  writeFileSync(file, 'another one')
  expect(tail.read(100)).toBe('another one')
})

test('a pipe or a folder instead of a file does not block', () => {
  const tail = new Tail(file)
  rmSync(file)
  execFileSync('mkfifo', [file])
  expect(tail.read(100)).toBe('')
  rmSync(file)
  execFileSync('mkdir', [file])
  expect(tail.read(100)).toBe('')
})

test('a file that cannot be read is reported and tried again', async () => {
  const world = new FakeWorld()
  const tail = new Tail(file)
  const troubles: unknown[] = []
  const sent: string[] = []
  let isBroken = true
  const pump = new Pump({
    world,
    read() {
      if (isBroken) throw new Error('cannot be read')
      return tail.read(100) || null
    },
    async send(text) {
      sent.push(text)
    },
    onTrouble: (error) => troubles.push(error),
  })
  await settled()
  await world.pass(600)
  expect(troubles).toHaveLength(3)
  isBroken = false
  await world.pass(300)
  expect(sent).toEqual(['one'])
  isBroken = true
  appendFileSync(file, 'more')
  await pump.end(RUNNING)
  expect(sent).toEqual(['one'])
  expect(world.pendingMs).toEqual([])
})
