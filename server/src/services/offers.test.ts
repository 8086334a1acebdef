import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../bus/embedded.ts'
import type { PostgresStore } from '../store/engines/postgres.ts'
import type { Command, Store } from '../store/port.ts'
import { openNode, unique, until } from '../testing/store.ts'
import { realWorld } from '../world.ts'
import { LOCAL_ADMIN } from './access.ts'
import { DEFAULT_LIMITS } from './deps.ts'
import { createServices, type Services } from './index.ts'
import { silentMeter } from './meter.ts'

/** A job for which a poll waits on the same node is leased with its submission. */

let database: FreshDatabase
let node: PostgresStore
let services: Services
let bus: EmbeddedBus
let queue: string
/** Names of the commands that were carried out. */
let written: string[]
/** Stands between the services and the store. */
let before: (command: Command<unknown>) => Promise<void>

/** In which nobody looks just because a second has passed: what is not heard of is not found. */
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
  const store: Store = {
    ...node,
    async write(command) {
      await before(command as Command<unknown>)
      const answer = await node.write(command)
      written.push(command.name)
      return answer
    },
  }
  bus = new EmbeddedBus()
  services = createServices({ world, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
  queue = unique('queue')
  // Makes the user known.
  await submit({ queue: unique('elsewhere') })
})

async function submit(input: object = {}, key: string | null = null): Promise<string> {
  const outcome = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue, ...input }, { key })
  if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
  return outcome.jobId
}

interface Waiting {
  /** The ids of the jobs that it leases. */
  answer: Promise<string[]>
}

/** A poll whose first look has found nothing. */
async function waiting(changes: object = {}, signal?: AbortSignal): Promise<Waiting> {
  written = []
  const request = { queues: [queue], kinds: ['work'], max: 1, waitMs: 20_000, pollId: unique('poll'), ...changes }
  const leases = services.runs.lease(unique('worker'), request, signal)
  await until('the first look', async () => written.includes('lease'))
  written = []
  return { answer: leases.then((all) => all.map(({ job_id }) => job_id)) }
}

/** Holds the next command of this name back, until it is let go or made to fail. */
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

test('nobody has to look for it', async () => {
  const { answer } = await waiting()
  const jobId = await submit()
  expect(await answer).toEqual([jobId])
  expect(written).toEqual(['submit'])
  expect(await stateOf(jobId)).toBe('ASSIGNED')
})

test('several that come together go to one poll, or to as many as it takes', async () => {
  const polls = [await waiting({ max: 2 }), await waiting(), await waiting()]
  const jobIds = await Promise.all([submit(), submit(), submit()])
  const [first, second] = await Promise.all(polls.slice(0, 2).map(({ answer }) => answer))
  expect([first, second]).toEqual([jobIds.slice(0, 2), jobIds.slice(2)])
  expect(written).not.toContain('lease')
  const fourth = await submit()
  expect(await polls[2]?.answer).toEqual([fourth])
})

test.each([
  ['more than are waited for', ['work', 'work', 'work', 'work']],
  ['of different kinds', ['work', 'other', 'work', 'other']],
])('those who wait look for their work when what comes is %s', async (_, kinds) => {
  const { answer } = await waiting({ kinds: [] })
  const [first] = await Promise.all(kinds.map((kind) => submit({ kind })))
  expect(await answer).toEqual([first])
  expect(written).toContain('lease')
})

test('a poll that gives up meanwhile gets it all the same, and gives it back when it cannot ask again', async () => {
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

test('what it has missed while it was offered in vain is looked for at once', async () => {
  await submit({ queue: unique('elsewhere') }, 'used')
  const { answer } = await waiting()
  const held = hold('submit')
  const replay = services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: 'used' })
  await held.reached
  // Of another node, which says so.
  const other = createServices({ ...services.deps, store: node })
  const elsewhere = await other.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })
  // It is heard in the next turn of the event loop.
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => world.soon(() => resolve(null)))
  held.letGo()
  await replay
  expect(await answer).toEqual(['jobId' in elsewhere ? elsewhere.jobId : ''])
})

test('a store that fails leaves the poll where it was', async () => {
  const { answer } = await waiting()
  const held = hold('submit')
  const failing = submit()
  await held.reached
  held.fail(new Error('no store'))
  await expect(failing).rejects.toThrow('no store')
  const jobId = await submit()
  expect(await answer).toEqual([jobId])
})

describe('of a queue that is paused', () => {
  test('one submission learns that there is nothing to be had, and the next ones do not ask', async () => {
    await services.queues.put(LOCAL_ADMIN, queue, { paused: true })
    const { answer } = await waiting()
    const jobIds = [await submit(), await submit(), await submit()]
    expect(await Promise.all(jobIds.map(stateOf))).toEqual(['PENDING', 'PENDING', 'PENDING'])
    await services.queues.put(LOCAL_ADMIN, queue, { paused: false })
    expect(await answer).toEqual([jobIds[0]])
  })
})
