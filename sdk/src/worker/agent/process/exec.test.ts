import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { agentProgram } from '../../../../../scripts/testing/programs.ts'
import { IchidoError, type LeaseShape } from '../../../protocol/index.ts'
import { Heart } from '../../loop/heart.ts'
import type { Outcome } from '../../loop/loop.ts'
import { RunStop, Stopped } from '../../loop/run-stop.ts'
import { LEASE, Plane, unavailable } from '../../testing/plane.ts'
import { httpArtifacts } from '../output/artifacts.ts'
import { FileRefused } from '../output/files.ts'
import { machineClocks, nodeWorld } from '../world.ts'
import { execWork } from './exec.ts'
import { RunFolders } from './run-folder.ts'

const SUPERVISOR = [process.execPath, agentProgram(), 'supervise'] as const
const RUNNING = new AbortController().signal
const WITHIN = { timeout: 15_000, interval: 20 }

let root: string
let folders: RunFolders
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ichido-exec-'))
  folders = new RunFolders(root, true)
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(root, { recursive: true })
})

interface Surroundings {
  log?: () => Promise<void>
  sendAll?: (_: LeaseShape, folder: string) => Promise<void>
  run?: RunStop
  env?: Record<string, string>
  onTrouble?: (error: unknown) => void
}

function work(command: string, surroundings: Surroundings): Promise<Outcome> {
  const {
    log = async () => {},
    sendAll = async () => {},
    run = new RunStop(),
    env = {},
    onTrouble = () => {},
  } = surroundings
  const transport = Object.assign(new Plane(), { log, detach: async () => {} })
  const artifacts = { async fetchAll() {}, sendAll }
  const deps = { command, env, supervisor: SUPERVISOR, folders, transport, artifacts, world: nodeWorld, onTrouble }
  const lease = { ...LEASE, lease_id: `exec-${process.pid}-${root}` }
  const heart = new Heart({ world: nodeWorld, clocks: machineClocks, transport, onTrouble() {} })
  const hold = heart.hold(lease, machineClocks(), run)
  const inHand = Object.assign(run, { lease, hold, slot: 0, ended: () => hold.runEnded() })
  return execWork(deps)(inHand).finally(() => hold.letGo())
}

test.each([
  ['a result', `echo '{"answer":42}' > $ICHIDO_RESULT_FILE`, { result: { result: { answer: 42 } } }],
  [
    'a result with what it cost',
    'echo 7 > $ICHIDO_RESULT_FILE; echo .25 > $ICHIDO_COST_FILE',
    { result: { result: 7, cost: 0.25 } },
  ],
  ['a failure', 'echo no luck >&2; exit 3', { failure: { code: 'EXIT_3', traceback: 'no luck\n' } }],
])('%s is on disk before the last lines of its log are sent', async (_, command, expected) => {
  let reachable = false
  const log = async () => {
    if (!reachable) throw unavailable()
  }
  const done = work(`echo working; ${command}`, { log })
  const kept = await vi.waitFor(() => {
    const [found] = folders.leftovers().kept
    expect(found).toBeDefined()
    return found
  }, WITHIN)
  expect(kept?.report).toMatchObject(expected)
  expect(await Promise.race([done, 'not told yet'])).toBe('not told yet')
  reachable = true
  expect(await done).toMatchObject(expected)
})

test.each([
  ['0', { cost: 0 }],
  ['1e9', { cost: 1_000_000_000 }],
  ['', {}],
])('a cost file with "%s" gives %o', async (text, cost) => {
  expect(await work(`echo ${text} > $ICHIDO_COST_FILE`, {})).toEqual({ result: { result: null, ...cost } })
})

test.each(['-1', 'NaN', 'Infinity', '1000000001', '3,50', '1 2', '"3"', 'null'])(
  'a cost file with %s fails the run',
  async (text) => {
    const message = 'The cost file does not hold a number from 0 to 1000000000'
    expect(await work(`echo '${text}' > $ICHIDO_COST_FILE`, {})).toEqual({
      failure: { code: 'INVALID_RESULT', message, retryable: true },
    })
  },
)

test('a failed program keeps its own error, whatever its cost file contains', async () => {
  const outcome = await work('echo much > $ICHIDO_COST_FILE; exit 3', {})
  expect(outcome).toEqual({ failure: { code: 'EXIT_3', message: 'The program exited with code 3', retryable: true } })
})

test('the files of a failure are sent; an error of that does not change it', async () => {
  const troubles: unknown[] = []
  const sent: string[][] = []
  const sendAll = async (_: LeaseShape, folder: string) => {
    sent.push(readdirSync(folder))
    throw new IchidoError('PAYLOAD_TOO_LARGE', 'too large')
  }
  const onTrouble = (error: unknown) => void troubles.push(error)
  const outcome = await work('touch outputs/unconverged; exit 3', { sendAll, onTrouble })
  expect(outcome).toMatchObject({ failure: { code: 'EXIT_3' } })
  expect(sent).toEqual([['unconverged']])
  expect(troubles).toEqual([new Error('The files of the failed job job could not be sent: too large')])
})

test('a result with a refused file fails without a retry', async () => {
  const sendAll = async () => {
    throw new FileRefused('outputs/so? was refused: name must be a plain file name')
  }
  expect(await work('touch outputs/so?', { sendAll })).toMatchObject({
    failure: {
      code: 'FILE_REFUSED',
      message: 'outputs/so? was refused: name must be a plain file name',
      retryable: false,
    },
  })
})

test.each([
  ['result.json is not a regular file', 'mkfifo "$ICHIDO_RESULT_FILE"'],
  ['result.json is a symbolic link', 'ln -s /etc/passwd "$ICHIDO_RESULT_FILE"'],
  ['outputs is not a folder, or is not inside one', 'rmdir outputs; ln -s /etc outputs'],
])('a run whose %s fails without a retry', async (message, command) => {
  const { sendAll } = httpArtifacts({ url: 'http://127.0.0.1:9', token: () => '', world: nodeWorld })
  const outcome = await work(command, { sendAll: (lease, outputs) => sendAll(lease, outputs, RUNNING) })
  expect(outcome).toEqual({ failure: { code: 'FILE_REFUSED', message, retryable: false } })
})

test('a program inherits only listed and added variables', async () => {
  const withheld = { DATABASE_URL: 'd', REDIS_URL: 'r', ICHIDO_TOKEN: 't', ICHIDO_ENROLL_TOKEN: 'e', MY_APP: 'm' }
  const handedOn = { LC_ALL: 'C', CUDA_VISIBLE_DEVICES: '0', OMP_NUM_THREADS: '2', CONDA_PREFIX: '/conda' }
  for (const [name, value] of Object.entries({ ...withheld, ...handedOn, SLURM_JWT: 'j' })) vi.stubEnv(name, value)
  const print = 'process.stdout.write(JSON.stringify(process.env))'
  const outcome = await work(`'${process.execPath}' -e '${print}' > "$ICHIDO_RESULT_FILE"`, { env: { MINE: 'yes' } })
  const { result: env } = ('result' in Object(outcome) && Object(outcome).result) as { result: Record<string, string> }
  expect(env).toMatchObject({ ...handedOn, MINE: 'yes', PATH: process.env.PATH, ICHIDO_JOB_ID: LEASE.job_id })
  const unlisted = Object.keys(env).filter((name) => name.startsWith('ICHIDO_') === false && !(name in handedOn))
  for (const name of [...Object.keys(withheld), 'SLURM_JWT']) expect(unlisted).not.toContain(name)
  expect(
    Object.keys(env)
      .filter((name) => name.startsWith('ICHIDO_'))
      .toSorted(),
  ).toEqual([
    'ICHIDO_AGENT_DIR',
    'ICHIDO_ATTEMPT',
    'ICHIDO_COST_FILE',
    'ICHIDO_JOB_ID',
    'ICHIDO_KIND',
    'ICHIDO_LAST_PROGRESS',
    'ICHIDO_LEASE_ID',
    'ICHIDO_PAYLOAD_FILE',
    'ICHIDO_PROGRESS_FILE',
    'ICHIDO_QUEUE',
    'ICHIDO_RESULT_FILE',
    'ICHIDO_SLOT',
  ])
})

test('a stopped run does not wait for its files', async () => {
  const run = new RunStop()
  const sendAll = vi.fn(async () => {})
  // Not before it runs.
  const log = async () => run.abort(new Stopped('CANCELED', 'The job was canceled'))
  expect(await work('touch outputs/half; echo runs; exec sleep 60', { run, log, sendAll })).toMatchObject({
    failure: { code: 'CANCELED' },
  })
  expect(sendAll).not.toHaveBeenCalled()
})
