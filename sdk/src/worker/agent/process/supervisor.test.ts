import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { alive } from '../../../../../scripts/services/process-tree.ts'
import { agentProgram } from '../../../../../scripts/testing/programs.ts'
import { nodeArgs } from '../../../../../scripts/testing/services.ts'
import { machineClocks } from '../world.ts'
import { makeCgroup } from './processes.ts'
import { type Program, type SpawnOrder, startProgram } from './program.ts'

const MAIN = join(import.meta.dirname, '../main.ts')
const SUPERVISOR = [process.execPath, agentProgram(), 'supervise'] as const
const PRELOAD = pathToFileURL(join(import.meta.dirname, '../../testing/no-cgroups.ts')).href
const WITHOUT_CGROUPS = [process.execPath, ...nodeArgs, '--import', PRELOAD, MAIN, 'supervise'] as const
const WITHIN = { timeout: 15_000, interval: 20 }

let folder: string
let leases = 0
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-supervisor-'))
  writeFileSync(join(folder, 'payload'), '{"n":1}')
})
afterEach(() => rmSync(folder, { recursive: true }))

function order(command: string, aloneMs = 60_000): SpawnOrder {
  const leaseId = `lease-${process.pid}-${++leases}`
  return {
    command,
    folder,
    env: { PATH: process.env.PATH ?? '', ICHIDO_LEASE_ID: leaseId },
    leaseId,
    payloadFile: join(folder, 'payload'),
    stdoutFile: join(folder, 'stdout'),
    stderrFile: join(folder, 'stderr'),
    progressFile: join(folder, 'progress'),
    noteFile: join(folder, 'note'),
    confirmed: machineClocks(),
    aloneMs,
  }
}

const start = (command: string, aloneMs?: number): Program => startProgram(SUPERVISOR, order(command, aloneMs))
const text = (name: string) => readFileSync(join(folder, name), 'utf8')

/** The numbers of processes that wrote themselves down. */
async function pids(count: number): Promise<number[]> {
  return vi.waitFor(() => {
    const found = text('pids').trim().split('\n').map(Number)
    expect(found).toHaveLength(count)
    return found
  }, WITHIN)
}

const NOTE = 'echo $$ >> pids'
/** Ignores polite signals, as does what it starts: in its group, in a session of its own, and with another environment. */
const STUBBORN = [
  `trap '' TERM`,
  NOTE,
  `(sh -c '${NOTE}; while :; do sleep 0.05; done' &)`,
  `setsid sh -c '${NOTE}; while :; do sleep 0.05; done' &`,
  'while :; do sleep 0.05; done',
].join('\n')

test('a program gets stdin, output files and fd 3; its exit is reported', async () => {
  const program = start('cat; echo bad >&2; echo \'{"percent":1}\' >&3; exit 7')
  expect(await program.ended).toEqual({ by: 'itself', code: 7, signal: null })
  expect(text('stdout')).toBe('{"n":1}')
  expect(text('stderr')).toBe('bad\n')
  expect(text('progress')).toBe('{"percent":1}\n')
})

test('processes that a program leaves behind end with it', async () => {
  const program = start(
    `(sh -c '${NOTE}; sleep 60' &); setsid sh -c '${NOTE}; sleep 60' & until [ -f pids ] && [ $(wc -l < pids) = 2 ]; do sleep 0.02; done`,
  )
  expect(await program.ended).toMatchObject({ by: 'itself', code: 0 })
  expect((await pids(2)).filter(alive)).toEqual([])
})

test.each([
  ['at its end', () => {}, ':'],
  ['when it is stopped', (program: Program) => program.stop(0), 'exec sleep 60'],
])('without a control group, processes that left the group are killed %s', async (_, end, last) => {
  const escaped = `trap "" TERM; ${NOTE}; while :; do sleep 0.05; done`
  const program = startProgram(
    WITHOUT_CGROUPS,
    order(`setsid sh -c '${escaped}' & until [ -s pids ]; do sleep 0.02; done; ${last}`),
  )
  const [away = 0] = await pids(1)
  onTestFinished(() => void (alive(away) && process.kill(away, 'SIGKILL')))
  end(program)
  await program.ended
  expect(JSON.parse(text('note')).cgroup).toBe(null)
  expect(alive(away)).toBe(false)
})

test('without a confirmed heartbeat in time, all its processes are killed', async () => {
  const program = start(STUBBORN, 1_500)
  const all = await pids(3)
  const begunMs = Date.now()
  expect(await program.ended).toMatchObject({ by: 'deadline', signal: 'SIGKILL' })
  expect(Date.now() - begunMs).toBeLessThan(5_000)
  expect(all.filter(alive)).toEqual([])
})

test('a confirmed heartbeat extends its time, from when it was sent', async () => {
  const program = start(STUBBORN, 1_500)
  await pids(3)
  const untilMs = Date.now() + 2_500
  while (Date.now() < untilMs) {
    program.confirm(machineClocks())
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  expect(text('pids').trim().split('\n').map(Number).every(alive)).toBe(true)
  const { monotonic = 0, uptime = 0, wall = 0 } = machineClocks()
  program.confirm({ monotonic: monotonic - 2_000, uptime, wall })
  expect(await program.ended).toMatchObject({ by: 'deadline' })
})

test('a confirmation after SIGTERM gives it no more time', async () => {
  const aloneMs = 2_000
  const asked = `trap 'echo asked' TERM; ${NOTE}; while :; do sleep 0.05; done`
  const program = start(asked, aloneMs)
  await pids(1)
  await vi.waitFor(() => expect(text('stdout')).toBe('asked\n'), WITHIN)
  const confirming = setInterval(() => program.confirm(machineClocks()), 20)
  onTestFinished(() => clearInterval(confirming))
  const askedMs = Date.now()
  expect(await program.ended).toMatchObject({ by: 'deadline', signal: 'SIGKILL' })
  // All that is left is a tenth of its time.
  expect(Date.now() - askedMs).toBeLessThan(aloneMs)
})

test.each(['monotonic', 'uptime', 'wall'])('the %s clock alone shows that time has passed', async (clock) => {
  const program = start('sleep 60')
  program.confirm({ ...machineClocks(), [clock]: 0 })
  expect(await program.ended).toMatchObject({ by: 'deadline' })
})

test('a program is not started after its deadline', async () => {
  const late = order('touch begun')
  const program = startProgram(SUPERVISOR, { ...late, confirmed: { wall: Date.now() - 60_000 } })
  expect(await program.ended).toEqual({ by: 'deadline', code: null, signal: null })
  expect(() => text('begun')).toThrow('ENOENT')
})

test('a program gets SIGTERM first, and SIGKILL after the grace time', async () => {
  const polite = start(`trap 'echo bye; exit 3' TERM; ${NOTE}; while :; do sleep 0.05; done`)
  await pids(1)
  polite.stop(60_000)
  expect(await polite.ended).toEqual({ by: 'agent', code: 3, signal: null })
  expect(text('stdout')).toBe('bye\n')
  rmSync(join(folder, 'pids'))
  const stubborn = start(STUBBORN)
  const all = await pids(3)
  stubborn.stop(100)
  expect(await stubborn.ended).toMatchObject({ by: 'agent', signal: 'SIGKILL' })
  expect(all.filter(alive)).toEqual([])
})

test('a program keeps its grace time after its shell ends, and gets one SIGTERM', async () => {
  const TIDY = `trap 'echo asked; sleep 0.5; echo tidied; exit' TERM; ${NOTE}; while :; do sleep 0.05; done`
  // In the shell's group, and in one of its own.
  const program = start(`sh -c "${TIDY}" & setsid sh -c "${TIDY}" & wait; echo never`)
  await pids(2)
  program.stop(60_000)
  expect(await program.ended).toEqual({ by: 'agent', code: null, signal: 'SIGTERM' })
  expect(text('stdout')).toBe('asked\nasked\ntidied\ntidied\n')
})

test('a command that cannot start reports the reason', async () => {
  await expect(startProgram(SUPERVISOR, { ...order('true'), folder: join(folder, 'nowhere') }).ended).rejects.toThrow(
    'ENOENT',
  )
})

test('a program without a note is not started', async () => {
  const unnoted = { ...order('touch begun'), noteFile: join(folder, 'nowhere', 'note') }
  await expect(startProgram(SUPERVISOR, unnoted).ended).rejects.toThrow('ENOENT')
  expect(() => text('begun')).toThrow('ENOENT')
})

test('the agent kills the program of a killed supervisor, even without environment', async () => {
  const program = start(`echo $PPID > supervisor; exec env -i sh -c '${NOTE}; exec sleep 60'`)
  const [pid = 0] = await pids(1)
  process.kill(Number(text('supervisor')), 'SIGKILL')
  expect(await program.ended).toEqual({ by: 'itself', code: null, signal: 'SIGKILL' })
  expect(alive(pid)).toBe(false)
})

test.each([
  ['', (program: Program) => program.stop(0)],
  [' when its supervisor is killed', () => void process.kill(Number(text('supervisor')), 'SIGKILL')],
])('with a control group, no process escapes%s, even without environment', async (_, end) => {
  const cgroup = makeCgroup()
  cgroup?.remove()
  const program = start(`echo $PPID > supervisor; env -i setsid sh -c '${NOTE}; exec sleep 60' & sleep 60`)
  const [away = 0] = await pids(1)
  end(program)
  await program.ended
  expect(alive(away)).toBe(cgroup === null)
  if (cgroup === null) process.kill(away, 'SIGKILL')
})
