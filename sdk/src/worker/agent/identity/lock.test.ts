import { type ChildProcess, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { nodeArgs } from '../../../../../scripts/testing/services.ts'
import { size } from '../../../../../scripts/testing/size.ts'
import { lockState } from './lock.ts'

const RACER = join(import.meta.dirname, '../../testing/lock-racer.ts')
const RACERS = 4
const ROUNDS = size(20, 600)
const EVERY_MS = 20
/** No process has had it: beyond the highest number there is. */
const DEAD = '99999999 1'

let folder: string
let path: string
const children: ChildProcess[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-lock-'))
  path = join(folder, 'state', 'lock')
})
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
  rmSync(folder, { recursive: true })
})

function racer(rounds: number): { lines: Interface; go(atMs: number): void } {
  const child = spawn(process.execPath, [...nodeArgs, RACER, folder, String(rounds), String(EVERY_MS)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  children.push(child)
  return { lines: createInterface(child.stdout), go: (atMs) => void child.stdin.write(`${atMs}\n`) }
}

const line = ({ lines }: { lines: Interface }) =>
  new Promise<string>((resolve, reject) => {
    lines.once('line', resolve)
    lines.once('close', () => reject(new Error('The racer ended')))
  })

/** Which rounds each of several processes won. */
async function race(rounds: number): Promise<number[][]> {
  const racers = Array.from({ length: RACERS }, () => racer(rounds))
  await Promise.all(racers.map(line))
  const won = racers.map(line)
  for (const { go } of racers) go(Date.now() + 100)
  return (await Promise.all(won)).map((text) => JSON.parse(text) as number[])
}

test.each([
  ['a folder without a lock', []],
  ['the lock of a dead one', ['lock']],
  ['the lock of a dead one, and of one that died on taking it over', ['lock', 'lock.takeover']],
])('of several agents that start at once, one gets %s', async (_, stale) => {
  for (let round = 0; round < ROUNDS; round++) {
    mkdirSync(join(folder, String(round)))
    for (const name of stale) writeFileSync(join(folder, String(round), name), DEAD)
  }
  const won = await race(ROUNDS)
  const all = Array.from({ length: ROUNDS }, (_, round) => round)
  expect(won.flat().sort((a, b) => a - b)).toEqual(all)
  for (const round of all) expect(readdirSync(join(folder, String(round)))).toEqual(['lock'])
})

test('the lock is refused while its process lives, and free after any end of it', async () => {
  const other = racer(1)
  await line(other)
  const won = line(other)
  other.go(0)
  expect(await won).toBe('[0]')
  const taken = join(folder, '0', 'lock')
  expect(() => lockState(taken)).toThrow(
    `Another agent (process ${children[0]?.pid}) uses the state folder ${dirname(taken)}; use --name OTHER`,
  )
  const ended = new Promise((resolve) => children[0]?.on('exit', resolve))
  children[0]?.kill('SIGKILL')
  await ended
  lockState(taken)()
})

test.each(['', 'nonsense', '1', `${process.pid} 1`, '1 1'])('a lock with the content %j has no owner', (content) => {
  mkdirSync(join(folder, 'state'))
  writeFileSync(path, content)
  const unlock = lockState(path)
  expect(readdirSync(join(folder, 'state'))).toEqual(['lock'])
  unlock()
  expect(readdirSync(join(folder, 'state'))).toEqual([])
})
