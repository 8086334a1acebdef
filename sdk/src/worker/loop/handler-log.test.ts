import { beforeEach, expect, test, vi } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { defineKind } from '../../client/kind.ts'
import { IchidoError } from '../../protocol/index.ts'
import { LEASE, Plane, unavailable } from '../testing/plane.ts'
import { type Handler, HandlerLoop } from '../worker.ts'

let world: FakeWorld
let plane: Plane
let troubles: unknown[]
beforeEach(() => {
  world = new FakeWorld()
  plane = new Plane()
  troubles = []
})

async function run(handler: Handler<unknown, unknown>): Promise<void> {
  plane.work.push(LEASE)
  const onTrouble = (error: unknown) => troubles.push(error)
  new HandlerLoop(defineKind('work'), handler, {}, { transport: plane, world, onTrouble })
  await settled()
}

const logged = () => plane.logged.flat()
const text = () =>
  logged()
    .map((chunk) => chunk.text)
    .join('')

test('lines are sent in order, several at once, and before the outcome', async () => {
  let reportsBefore = -1
  const send = plane.log.bind(plane)
  plane.log = async (leaseId, chunks) => {
    reportsBefore = plane.reports.length
    await send(leaseId, chunks)
  }
  await run(({ log }) => {
    for (let n = 1; n <= 100; n++) log(`line ${n}`)
    return 'done'
  })
  expect(text()).toBe(Array.from({ length: 100 }, (_, i) => `line ${i + 1}\n`).join(''))
  expect(logged().map(({ n, stream }) => [n, stream])).toEqual([
    [0, 'stdout'],
    [1, 'stdout'],
  ])
  expect(reportsBefore).toBe(0)
  expect(plane.reports).toEqual([{ result: 'done' }])
})

test('lines are sent while the handler runs', async () => {
  const ended = Promise.withResolvers<void>()
  let say = (_line: string) => {}
  await run(async ({ log }) => {
    say = log
    log('first')
    await ended.promise
  })
  expect(text()).toBe('first\n')
  say('second')
  await settled()
  expect(text()).toBe('first\n')
  await world.pass(300)
  expect(text()).toBe('first\nsecond\n')
  ended.resolve()
  await settled()
  expect(plane.reports).toEqual([{ result: null }])
})

test('a chunk is retried with its number, and the outcome waits for it', async () => {
  plane.troubles.log.push(unavailable())
  await run(({ log }) => log('kept'))
  expect([logged(), plane.reports]).toEqual([[], []])
  await world.pass(2_000)
  expect(logged()).toEqual([{ n: 0, stream: 'stdout', text: 'kept\n' }])
  expect(plane.reports).toEqual([{ result: null }])
})

test('in an endless outage the outcome waits only as long as the run may continue', async () => {
  plane.log = () => Promise.reject(unavailable())
  await run(({ log }) => log('never heard'))
  await world.pass(LEASE.continuation_seconds * 1_000)
  expect(plane.reports).toEqual([{ result: null }])
  expect(String(troubles.at(-1))).toBe('Error: The end of the log of job job was not delivered')
})

test.each<[string, Handler<unknown, unknown>]>([
  ['what is refused', ({ log }) => log('a line')],
  [
    'what is no text',
    ({ log }) => {
      for (const line of [undefined, 1n, { toString: null }, new Error('x'), Symbol('y')]) log(line as never)
    },
  ],
])('%s does not fail a handler', async (_, handler) => {
  plane.troubles.log.push(new IchidoError('LEASE_LOST'))
  await run(handler)
  expect(plane.reports).toEqual([{ result: null }])
  expect(logged()).toEqual([])
  expect(troubles).toMatchObject([{ code: 'LEASE_LOST' }])
})

test('invalid characters are replaced, and no chunk cuts a character', async () => {
  await run(({ log }) => {
    log('first')
    log(`a\0b\ud800${'😀'.repeat(64 * 1024)}`)
  })
  expect(text() === `first\na\ufffdb\ufffd${'😀'.repeat(64 * 1024)}\n`).toBe(true)
  for (const chunk of logged())
    expect([chunk.text.isWellFormed(), chunk.text.length <= 64 * 1024]).toEqual([true, true])
})

test('8 MiB of a run are kept, and the log notes the cut', async () => {
  await run(({ log }) => {
    for (let n = 0; n < 9; n++) log('x'.repeat(1024 * 1024))
    log('unheard')
  })
  await vi.waitFor(() => expect(plane.reports).toEqual([{ result: null }]))
  expect(text().length).toBeLessThan(8 * 1024 * 1024 + 100)
  expect(text().slice(-40)).toMatch(/x\n\[The rest of the log was dropped\]\n$/)
})
