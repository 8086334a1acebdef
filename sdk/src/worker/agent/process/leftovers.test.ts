import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { alive } from '../../../../../scripts/services/process-tree.ts'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import { agentProgram } from '../../../../../scripts/testing/programs.ts'
import { IchidoError, type LeaseShape } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'
import type { LogChunk } from '../../loop/ports.ts'
import { LEASE, Plane, unavailable } from '../../testing/plane.ts'
import { RunOutput } from '../output/run-output.ts'
import { machineClocks, nodeWorld } from '../world.ts'
import { type ProgramNote, SUPERVISOR_MARKER } from './kill.ts'
import { settleLeftovers } from './leftovers.ts'
import { bootId, identityOf, makeCgroup, sweepCgroups } from './processes.ts'
import { type RunFolder, RunFolders } from './run-folder.ts'

const WITHIN = { timeout: 15_000, interval: 20 }
/** Ignores SIGTERM, and has no mark, so that only its group leads to it. */
const STUBBORN = `env -i /bin/sh -c 'trap "" TERM; echo $$ > pid; while :; do sleep 0.05; done'`
const UNMARKED = `exec ${STUBBORN}`

let root: string
let lease: LeaseShape
let folders: RunFolders
let plane: Plane
/** The log chunks at the control plane, with the number of reports before each. */
let logged: [chunk: LogChunk, reports: number][]
let isAway: boolean
/** The sent files, with the number of reports before each. */
let sent: [folder: string, reports: number][]
const artifacts = {
  async sendAll(_: LeaseShape, folder: string, _signal: AbortSignal): Promise<void> {
    sent.push([folder, plane.reports.length])
  },
}
const started: ChildProcess[] = []
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ichido-leftovers-'))
  lease = { ...LEASE, lease_id: `leftover-${process.pid}-${started.length}` }
  folders = new RunFolders(root, true)
  plane = new Plane()
  sent = []
  logged = []
  isAway = false
})
afterEach(() => {
  for (const child of started) child.kill('SIGKILL')
  rmSync(root, { recursive: true })
})

function start(file: string, args: string[]): ChildProcess {
  const child = spawn(file, args, {
    detached: true,
    env: { PATH: process.env.PATH ?? '', [SUPERVISOR_MARKER]: lease.lease_id },
    stdio: ['pipe', 'ignore', 'inherit'],
  })
  started.push(child)
  return child
}

/** As the control plane does it: a chunk that does not come after the last one was there before. */
const remote = () =>
  Object.assign(plane, {
    async log(_: string, chunks: readonly LogChunk[]) {
      if (isAway) throw unavailable()
      for (const chunk of chunks) if (chunk.n >= logged.length) logged.push([chunk, plane.reports.length])
    },
  })

const settle = (world: World, signal = new AbortController().signal) =>
  settleLeftovers({ folders, transport: remote(), artifacts, world, say() {}, onTrouble() {} }, signal)

const hasEnded = (child: ChildProcess) =>
  vi.waitFor(() => expect(child.exitCode ?? child.signalCode).not.toBeNull(), WITHIN)

interface Supervised {
  supervisor: ChildProcess
  folder: RunFolder
  /** The group of the program. */
  pid: number
  note: ProgramNote
  /** Whether it lived when the control plane heard of its end; null before that. */
  livedWhenReported(): boolean | null
}

/** A program under a supervisor, as an agent starts it, that has written down its number. */
async function supervised(command: string): Promise<Supervised> {
  const folder = folders.make(lease)
  const supervisor = start(process.execPath, [agentProgram(), 'supervise'])
  const order = {
    ...{ command, folder: folder.work, env: { PATH: process.env.PATH ?? '' }, leaseId: lease.lease_id },
    ...{ payloadFile: folder.payloadFile, stdoutFile: folder.stdoutFile, stderrFile: folder.stderrFile },
    ...{ progressFile: folder.progressFile, noteFile: folder.noteFile, confirmed: machineClocks(), aloneMs: 60_000 },
  }
  supervisor.stdin?.write(`${JSON.stringify({ spawn: order })}\n`)
  const pid = await vi.waitFor(() => {
    const noted = Number(readFileSync(join(folder.work, 'pid'), 'utf8'))
    expect(noted).toBeGreaterThan(0)
    return noted
  }, WITHIN)
  onTestFinished(async () => {
    if (alive(pid)) process.kill(pid, 'SIGKILL')
    supervisor.kill('SIGKILL')
    await hasEnded(supervisor)
    sweepCgroups()
  })
  let lived: boolean | null = null
  const { report } = plane
  plane.report = (...args) => {
    lived = alive(pid)
    return report.apply(plane, args)
  }
  const note = JSON.parse(readFileSync(folder.noteFile, 'utf8')) as ProgramNote
  return { supervisor, folder, pid, note, livedWhenReported: () => lived }
}

/** As on a machine where the supervisor may not make a control group. */
const withoutCgroup = ({ folder, note }: Supervised) =>
  writeFileSync(folder.noteFile, JSON.stringify({ ...note, cgroup: null }))

async function killed(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL')
  await hasEnded(child)
}

test('a restarted agent gives the supervisor time to kill its program', async () => {
  const { supervisor, livedWhenReported } = await supervised(UNMARKED)
  // All that a supervisor hears of its agent's end.
  supervisor.stdin?.end()
  await settle(nodeWorld)
  expect(livedWhenReported()).toBe(false)
  expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
})

test('a program without agent and supervisor is killed before its report', async () => {
  const given = await supervised(UNMARKED)
  withoutCgroup(given)
  await killed(given.supervisor)
  await settle(nodeWorld)
  expect(given.livedWhenReported()).toBe(false)
  expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
})

test('with a control group, escaped processes without environment are killed, too', async () => {
  const cgroup = makeCgroup()
  cgroup?.remove()
  const { supervisor, livedWhenReported } = await supervised(`setsid ${STUBBORN} & wait`)
  await killed(supervisor)
  await settle(nodeWorld)
  expect(livedWhenReported()).toBe(cgroup === null)
})

test('the program of a supervisor that must be killed is killed, too', async () => {
  const given = await supervised(UNMARKED)
  withoutCgroup(given)
  given.supervisor.kill('SIGSTOP')
  const world = new FakeWorld()
  const settling = settle(world)
  await world.pass(3_000)
  expect(alive(given.pid)).toBe(true)
  await vi.waitFor(async () => {
    await world.pass(100)
    expect(given.livedWhenReported()).toBe(false)
  }, WITHIN)
  await settling
})

/** A process group that no supervisor began, which says whom to look for; and how one would have noted it. */
async function groupOf(command: string, cwd: string): Promise<{ pid: number; note: ProgramNote }> {
  const child = spawn('/bin/sh', ['-c', command], { detached: true, cwd, stdio: ['pipe', 'pipe', 'inherit'] })
  started.push(child)
  const pid = await new Promise<number>((resolve) => child.stdout.once('data', (line) => resolve(Number(line))))
  onTestFinished(() => {
    if (alive(pid)) process.kill(pid, 'SIGKILL')
  })
  const group = child.pid ?? 0
  const note = { group, leader: identityOf(group) ?? '', boot: bootId(), cgroup: null }
  child.stdin.end()
  return { pid, note }
}

/** Its leader lives. */
const LED = 'echo $$; exec sleep 60'
/** Its leader is gone. */
const left = (output: string) => `sleep 60 > ${output} & echo $!; read -r line`

test.each([
  ['the number of one that is gone', LED, { leader: '1 1' }],
  ['all that was noted, but after a new start of the machine', LED, { boot: 'another' }],
  ['all that was noted, on a machine that does not tell its starts', LED, { boot: null }],
  ['no leader, and nothing of the run', left('/dev/null'), {}],
])('a group that has %s may be a stranger and is not killed', async (_, command, differs) => {
  const { noteFile } = folders.make(lease)
  const { pid, note } = await groupOf(command, '/')
  if (command !== LED) await vi.waitFor(() => expect(identityOf(note.group)).toBeNull(), WITHIN)
  writeFileSync(noteFile, JSON.stringify({ ...note, ...differs }))
  await settle(nodeWorld)
  expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
  expect(alive(pid)).toBe(true)
})

test.each([
  ["is in the run's folder", ({ work }: RunFolder) => groupOf(left('/dev/null'), work)],
  ['has a file of it open', ({ stdoutFile }: RunFolder) => groupOf(left(stdoutFile), '/')],
])('a group without its leader is killed if a member %s', async (_, begin) => {
  const folder = folders.make(lease)
  const { pid, note } = await begin(folder)
  await vi.waitFor(() => expect(identityOf(note.group)).toBeNull(), WITHIN)
  writeFileSync(folder.noteFile, JSON.stringify(note))
  await settle(nodeWorld)
  expect(alive(pid)).toBe(false)
})

test.each(['[]', '7', '{"half', '{"group":0}', '{"group":1,"leader":"1 1","boot":null,"cgroup":null}'])(
  'a note that is %s kills no process',
  async (note) => {
    const { noteFile } = folders.make(lease)
    writeFileSync(noteFile, note.replace('null', JSON.stringify(bootId())))
    await settle(nodeWorld)
    expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
  },
)

test('a supervisor that does not end is killed after a few seconds', async () => {
  folders.make(lease)
  const stuck = start('sleep', ['60'])
  const world = new FakeWorld()
  const settling = settle(world)
  await world.pass(3_000)
  expect(stuck.exitCode ?? stuck.signalCode).toBeNull()
  expect(plane.reports).toEqual([])
  await world.pass(7_000)
  await hasEnded(stuck)
  expect(stuck.signalCode).toBe('SIGKILL')
  await world.pass(4_000)
  await settling
  expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
})

test('a stopping agent does not wait for it, and leaves it to the next agent', async () => {
  folders.make(lease)
  const stuck = start('sleep', ['60'])
  const ending = new AbortController()
  const settling = settle(new FakeWorld(), ending.signal)
  ending.abort()
  await settling
  expect(stuck.exitCode ?? stuck.signalCode).toBeNull()
  expect(plane.reports).toEqual([])
  expect(folders.leftovers().abandoned).toHaveLength(1)
})

test('a run without processes is reported at once', async () => {
  folders.make(lease)
  await settle(new FakeWorld())
  expect(plane.reports).toMatchObject([{ code: 'AGENT_DIED' }])
  expect(folders.leftovers()).toEqual({ kept: [], abandoned: [] })
})

const FAILURE = { code: 'BAD', message: 'bad', retryable: true }

test.each([{ result: { result: 42, cost: 0.25 } }, { failure: FAILURE }])(
  '%o is reported after its files',
  async (outcome) => {
    const { outputs } = folders.make(lease)
    await folders.keep(lease, { leaseId: lease.lease_id, ...outcome })
    await settle(new FakeWorld())
    expect(plane.reports).toEqual(Object.values(outcome))
    expect(sent).toEqual([[outputs, 0]])
  },
)

test('a failure is reported without refused files; a result becomes a failure', async () => {
  const refusing = vi.spyOn(artifacts, 'sendAll').mockRejectedValue(new IchidoError('PAYLOAD_TOO_LARGE'))
  onTestFinished(() => refusing.mockRestore())
  for (const outcome of [{ result: { result: 42 } }, { failure: FAILURE }]) {
    folders.make(lease)
    await folders.keep(lease, { leaseId: lease.lease_id, ...outcome })
    await settle(new FakeWorld())
  }
  expect(plane.reports).toMatchObject([{ code: 'EXEC_FAILED', retryable: true }, FAILURE])
})

test('the lease is kept while the rest is sent; after its loss nothing is sent', async () => {
  const world = new FakeWorld()
  const told: AbortSignal[] = []
  const slow = vi.spyOn(artifacts, 'sendAll').mockImplementation((_lease, _folder, signal) => {
    told.push(signal)
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new IchidoError('LEASE_LOST'))))
  })
  onTestFinished(() => slow.mockRestore())
  folders.make(lease)
  await folders.keep(lease, { leaseId: lease.lease_id, result: { result: 42 } })
  const settling = settle(world)
  await vi.waitFor(() => expect(told).toHaveLength(1), WITHIN)
  const before = plane.beats.length
  await world.pass(lease.lease_ttl_seconds * 1000)
  expect(plane.beats.length - before).toBeGreaterThanOrEqual(3)
  plane.answerBeat = async () => ({ held: false, cancelRequested: false })
  await world.pass(lease.lease_ttl_seconds * 1000)
  await settling
  const beats = plane.beats.length
  await world.pass(10 * lease.lease_ttl_seconds * 1000)
  expect(plane.beats).toHaveLength(beats)
})

test('the rest of log and progress is sent once, before the stored report', async () => {
  const { stdoutFile, stderrFile, progressFile } = folders.make(lease)
  const world = new FakeWorld()
  const folder = folders.find(lease)
  if (folder === null) throw new Error('It was just made')
  const transport = remote()
  new RunOutput(lease, folder, { transport, world, onTrouble() {} })
  appendFileSync(stdoutFile, 'one\n')
  appendFileSync(progressFile, '{"step":1}\n')
  await world.pass(300)
  // Heard, but for the answer.
  const { log } = transport
  transport.log = async (...args) => {
    await log(...args)
    throw unavailable()
  }
  appendFileSync(stderrFile, 'two €\n')
  await world.pass(300)
  isAway = true
  appendFileSync(stdoutFile, 'three\n')
  appendFileSync(stderrFile, 'four\n')
  appendFileSync(progressFile, '{"step":2}')
  await world.pass(300)
  // Its time stands still from here on.
  isAway = false
  await folders.keep(lease, { leaseId: lease.lease_id, result: { result: 42 } })
  await settle(new FakeWorld())
  expect(logged).toEqual([
    [{ n: 0, stream: 'stdout', text: 'one\n' }, 0],
    [{ n: 1, stream: 'stderr', text: 'two €\n' }, 0],
    [{ n: 2, stream: 'stdout', text: 'three\n' }, 0],
    [{ n: 3, stream: 'stderr', text: 'four\n' }, 0],
  ])
  const one = ['progress', 1, { step: 1 }]
  expect(plane.published.flat()).toEqual([one, one, ['progress', 2, { step: 2 }]])
  expect(plane.reports).toEqual([{ result: 42 }])
})

test.each(['[]', '7', '{"at":7}', '{"sending":7}', '{"half'])(
  'a log position that is %s costs no result',
  async (place) => {
    const { logPlaceFile, stdoutFile } = folders.make(lease)
    appendFileSync(stdoutFile, 'one')
    writeFileSync(logPlaceFile, place)
    await folders.keep(lease, { leaseId: lease.lease_id, result: { result: 42 } })
    await settle(new FakeWorld())
    expect(plane.reports).toEqual([{ result: 42 }])
  },
)
