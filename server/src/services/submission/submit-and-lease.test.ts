import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { realWorld } from '../../node/world.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import { setQuota } from '../../store/limits/quotas.ts'
import type { Command, Store } from '../../store/port.ts'
import { openNode, sql, unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { createServices, type Services } from '../index.ts'
import { silentMeter } from '../system/meter.ts'

/** A submission leases its job at once if a poll waits on the same node. */

let database: FreshDatabase
let node: PostgresStore
let services: Services
let bus: EmbeddedBus
let queue: string
/** The names of the commands that ran. */
let written: string[]
/** Hooks between the services and the store. */
let before: (command: Command<unknown>) => Promise<void>
let after: (answer: unknown) => unknown

/** No polling by time in this world: only wake-ups cause a look. */
const world = {
  ...realWorld,
  after: (ms: number, then: () => void) => (ms < 1_000 ? () => {} : realWorld.after(ms, then)),
}

beforeAll(async () => {
  database = await freshDatabase()
  node = await openNode(database.url)
})
afterAll(async () => {
  await node.close()
  await database.leave()
})
beforeEach(async () => {
  written = []
  before = async () => {}
  after = (answer) => answer
  const store: Store = {
    ...node,
    async write(command) {
      await before(command as Command<unknown>)
      const answer = await node.write(command)
      written.push(command.name)
      return command.name === 'submit' ? (after(answer) as typeof answer) : answer
    },
  }
  bus = new EmbeddedBus()
  services = createServices({ world, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
  queue = unique('queue')
  // This makes the user known to the node.
  await submit({ queue: unique('elsewhere') })
})

async function submit(input: object = {}, key: string | null = null): Promise<string> {
  const outcome = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue, ...input }, { key })
  if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
  return outcome.jobId
}

interface Waiting {
  /** The ids of the leased jobs. */
  answer: Promise<string[]>
}

/** A poll whose first look has found nothing. */
async function waiting(changes: object = {}, signal?: AbortSignal, workerId = unique('worker')): Promise<Waiting> {
  written = []
  const request = { queues: [queue], kinds: ['work'], max: 1, waitMs: 20_000, pollId: unique('poll'), ...changes }
  const leases = services.runs.lease(workerId, request, signal)
  await until('the first look', async () => written.includes('lease'))
  written = []
  return { answer: leases.then((all) => all.map(({ job_id }) => job_id)) }
}

/** Holds the next command of this name, until the test lets it run or fail. */
function hold(name: string) {
  const [reached, open] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  let held = false
  before = async (command) => {
    if (held || command.name !== name) return
    held = true
    reached.resolve()
    await open.promise
  }
  return { reached: reached.promise, letGo: open.resolve, fail: open.reject }
}

const stateOf = async (jobId: string) => (await services.jobs.get(LOCAL_ADMIN, jobId)).state

test('a waiting poll gets the job without a look', async () => {
  const { answer } = await waiting()
  const jobId = await submit()
  expect(await answer).toEqual([jobId])
  // The node does not know the queue, so its name is claimed and its tags are read.
  expect(written).toEqual(['claim_user_names', 'find_last_tags', 'submit'])
  expect(await stateOf(jobId)).toBe('ASSIGNED')
})

test('several jobs go to one poll, or to several', async () => {
  const polls = [await waiting({ max: 2 }), await waiting(), await waiting()]
  const jobIds = await Promise.all([submit(), submit(), submit()])
  const [first, second] = await Promise.all(polls.slice(0, 2).map(({ answer }) => answer))
  expect([first, second]).toEqual([jobIds.slice(0, 2), jobIds.slice(2)])
  expect(written).not.toContain('lease')
  const fourth = await submit()
  expect(await polls[2]?.answer).toEqual([fourth])
})

test('the jobs of one poll are ordered by priority', async () => {
  const { answer } = await waiting({ max: 2 })
  // The first two of four are a batch.
  const jobIds = await Promise.all([0, 9, 5, 5].map((priority) => submit({ priority })))
  expect(await answer).toEqual([jobIds[1], jobIds[0]])
})

test.each([
  ['more than are waited for', ['work', 'work', 'work', 'work']],
  ['of different kinds', ['work', 'other', 'work', 'other']],
])('waiting polls look by themselves if the submission is %s', async (_, kinds) => {
  const { answer } = await waiting({ kinds: [] })
  const [first] = await Promise.all(kinds.map((kind) => submit({ kind })))
  expect(await answer).toEqual([first])
  expect(written).toContain('lease')
})

test('a poll that ends meanwhile gives the job back if it cannot repeat', async () => {
  const named = new AbortController()
  const held = hold('submit')
  const poll = await waiting({}, named.signal)
  const submitting = submit()
  await held.reached
  named.abort()
  held.letGo()
  expect(await poll.answer).toEqual([await submitting])
  expect(await stateOf(await submitting)).toBe('ASSIGNED')

  const nameless = new AbortController()
  const heldAgain = hold('submit')
  await waiting({ pollId: undefined }, nameless.signal)
  const another = submit()
  await heldAgain.reached
  nameless.abort()
  heldAgain.letGo()
  await until('it to be given back', async () => (await stateOf(await another)) === 'ORPHANED')
})

test('a poll looks at once for work that it missed during a declined match', async () => {
  await submit({ queue: unique('elsewhere') }, 'used')
  const { answer } = await waiting()
  const held = hold('submit')
  const replay = services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: 'used' })
  await held.reached
  // A submission on another node, with its wake-up.
  const other = createServices({ ...services.deps, store: node })
  const elsewhere = await other.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })
  // The wake-up arrives in the next turn of the event loop.
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => world.soon(() => resolve(null)))
  held.letGo()
  await replay
  expect(await answer).toEqual(['jobId' in elsewhere ? elsewhere.jobId : ''])
})

describe('a worker that repeats a poll', () => {
  test('that is gone gets the same leases', async () => {
    const [workerId, pollId] = [unique('worker'), unique('poll')]
    const gone = await waiting({ pollId }, undefined, workerId)
    const live = await waiting({ pollId }, undefined, workerId)
    const jobId = await submit()
    expect(await Promise.all([gone.answer, live.answer])).toEqual([[jobId], [jobId]])
  })

  test('that is being served waits for it', async () => {
    const [workerId, pollId, stopping] = [unique('worker'), unique('poll'), new AbortController()]
    const held = hold('submit')
    const first = await waiting({ pollId }, stopping.signal, workerId)
    const submitting = submit()
    await held.reached
    stopping.abort()
    const again = { queues: [queue], kinds: ['work'], max: 1, waitMs: 0, pollId }
    const collecting = services.runs.lease(workerId, again)
    held.letGo()
    expect(await first.answer).toEqual([await submitting])
    expect((await collecting).map(({ job_id }) => job_id)).toEqual([await submitting])
  })
})

describe('a commit without an answer', () => {
  const lost = (answer: unknown) => ({ ...(answer as object), kind: 'unheard' })

  test('is found by the waiting poll', async () => {
    const big = await waiting({ max: 2 })
    const small = await waiting()
    const held = hold('submit')
    const elsewhere = submit({}, unique('key'))
    await held.reached
    after = lost
    const jobId = await submit()
    expect(await small.answer).toEqual([jobId])
    held.letGo()
    expect(await big.answer).toEqual([await elsewhere])
  })

  test('is given back by a poll that cannot repeat', async () => {
    const gone = new AbortController()
    after = (answer) => {
      gone.abort()
      return lost(answer)
    }
    await waiting({ pollId: undefined }, gone.signal)
    const jobId = await submit()
    await until('it to be given back', async () => (await stateOf(jobId)) === 'ORPHANED')
  })
})

describe('a submission that must wait does not block the poll', () => {
  let client: pg.Client
  beforeEach(async () => {
    client = new pg.Client(database.url)
    await client.connect()
    await client.query('BEGIN')
  })
  afterEach(() => client.end())

  const open = async (caller: Caller, key: string | null) => {
    const input = { kind: 'work', queue: unique('elsewhere') }
    return services.submission.submitIn((command) => node.writeIn(client, command), caller, input, { key })
  }

  /** While this submission waits, the poll gets another job. */
  async function goesAround(blocked: Promise<unknown>, answer: Promise<string[]>): Promise<void> {
    await until('it to wait', async () => (await client.query(WAITING)).rowCount)
    const jobId = await submit()
    expect(await answer).toEqual([jobId])
    await client.query('ROLLBACK')
    await blocked
  }

  test('for a key in an open transaction', async () => {
    const { answer } = await waiting()
    const key = unique('key')
    await open(LOCAL_ADMIN, key)
    await goesAround(submit({}, key), answer)
  })

  test('for a user with a limit', async () => {
    const limited: Caller = { ...LOCAL_ADMIN, userId: unique('limited') }
    await node.write(setQuota(limited.userId, { maxConcurrent: 5, costLimitMicros: null, period: 'day' }))
    const { answer } = await waiting()
    await open(limited, null)
    await goesAround(services.submission.submit(limited, { kind: 'work', queue }, { key: null }), answer)
  })

  test('for a worker does not delay the submission', async () => {
    const workerId = unique('worker')
    const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', '[]', 0)`
    await sql(node, insert, workerId)
    const { answer } = await waiting({}, undefined, workerId)
    await client.query('SELECT 1 FROM ichido.workers WHERE worker_id = $1 FOR UPDATE', [workerId])
    const jobId = await submit()
    await client.query('ROLLBACK')
    expect(await answer).toEqual([jobId])
  })
})

const WAITING = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

test('after a submission without a lease, the next one tries again', async () => {
  const labelled = await waiting()
  await submit({ labels: { a: 'b' } })
  expect(await labelled.answer).toHaveLength(1)
  const plain = await waiting()
  const jobId = await submit()
  expect(await plain.answer).toEqual([jobId])
  expect(written).toEqual(['submit'])
})

test('a failing store leaves the poll waiting', async () => {
  const { answer } = await waiting()
  const held = hold('submit')
  const failing = submit()
  await held.reached
  held.fail(new Error('no store'))
  await expect(failing).rejects.toThrow('no store')
  const jobId = await submit()
  expect(await answer).toEqual([jobId])
})

describe('of a paused queue', () => {
  test('one submission is declined, and the next ones do not try', async () => {
    await services.queues.put(LOCAL_ADMIN, queue, { paused: true })
    const { answer } = await waiting()
    const jobIds = [await submit(), await submit(), await submit()]
    expect(await Promise.all(jobIds.map(stateOf))).toEqual(['PENDING', 'PENDING', 'PENDING'])
    await services.queues.put(LOCAL_ADMIN, queue, { paused: false })
    expect(await answer).toEqual([jobIds[0]])
  })
})
