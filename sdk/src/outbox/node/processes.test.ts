import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { findStrace, missStrace, traceProcess } from '../../../../scripts/testing/strace.ts'
import { platformWorld } from '../../world.ts'
import { FileStore } from './file-store.ts'

const PROGRAM = join(import.meta.dirname, '../testing/outbox-process.ts')
const folder = mkdtempSync(join(tmpdir(), 'ichido-outbox-processes-'))
const path = join(folder, 'state', 'outbox.jsonl')
const children = new Set<ChildProcess>()
let server: Server
/** The keys that arrived, in order. */
let arrived: string[] = []
/** Called for each key that arrives; settles when it may be answered. */
let answering: (key: string, response: ServerResponse) => Promise<void> | void = () => {}

beforeAll(async () => {
  server = createServer(async (request, response) => {
    const key = await text(request)
    arrived.push(key)
    await answering(key, response)
    response.writeHead(201).end('{}')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
})
afterAll(() => {
  for (const child of children) child.kill('SIGKILL')
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})

class Actor {
  readonly said: string[] = []
  readonly #child: ChildProcess
  readonly #heard = new Set<() => void>()

  constructor() {
    const address = server.address()
    if (address === null || typeof address === 'string') throw new Error('The server does not listen')
    const args = [...nodeArgs, PROGRAM, path, `http://127.0.0.1:${address.port}`]
    this.#child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    children.add(this.#child)
    if (this.#child.stdout === null) throw new Error('It has no output')
    createInterface(this.#child.stdout).on('line', (line) => {
      this.said.push(line)
      for (const look of this.#heard) look()
    })
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  tell(line: string): void {
    this.#child.stdin?.write(`${line}\n`)
  }

  hears(isIt: (said: readonly string[]) => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const look = () => {
        if (!isIt(this.said)) return
        this.#heard.delete(look)
        resolve()
      }
      this.#heard.add(look)
      this.#child.once('exit', () => reject(new Error(`It ended after saying ${this.said.join(', ')}`)))
      look()
    })
  }

  async kill9(): Promise<void> {
    const ended = once(this.#child, 'close')
    this.#child.kill('SIGKILL')
    await ended
    children.delete(this.#child)
  }
}

const ready = (said: readonly string[]) => said.includes('ready')
const flushed = (said: readonly string[]) => said.includes('flushed')

/** Reused, because a start costs a third of a second of a core. */
let idle: Actor | undefined

async function start(): Promise<Actor> {
  const actor = new Actor()
  await actor.hears(ready)
  return actor
}

async function read<T>(work: (store: FileStore) => Promise<T>): Promise<T> {
  const warn = (message: string) => expect(message).toContain('it is incomplete')
  const store = new FileStore({ path, world: platformWorld, warn })
  try {
    return await work(store)
  } finally {
    await store.close()
  }
}

async function fill(keys: readonly string[]): Promise<void> {
  await read(async (store) => {
    for (const key of keys) {
      const item = { id: key, key, body: 1, savedAtMs: 1, attempts: 0, status: 'queued', dueAtMs: 0 } as const
      await store.add(item)
    }
  })
}

const list = () => read((store) => store.list())

test('two processes send each item once, in order; after kill -9 the other continues', async () => {
  const first = Array.from({ length: size(10, 200) }, (_, i) => `first-${i}`)
  await fill(first)
  const [one, other] = await Promise.all([start(), start()])
  arrived = []
  one.tell('flush')
  other.tell('flush')
  await Promise.all([one.hears(flushed), other.hears(flushed)])
  expect(arrived).toEqual(first)
  expect(await list()).toEqual([])

  const second = Array.from({ length: size(5, 50) }, (_, i) => `second-${i}`)
  await fill(second)
  arrived = []
  const held = Promise.withResolvers<void>()
  const killed = Promise.withResolvers<void>()
  answering = (key) => {
    if (key !== 'second-2' || arrived.filter((one) => one === key).length > 1) return undefined
    held.resolve()
    return killed.promise
  }
  one.said.length = 0
  other.said.length = 0
  one.tell('flush')
  await held.promise
  other.tell('flush')
  await one.kill9()
  killed.resolve()
  await other.hears(flushed)
  // Only the interrupted item comes again, with its key.
  expect(arrived).toEqual(second.toSpliced(2, 0, 'second-2'))
  expect(await list()).toEqual([])
  expect(other.said.splice(0)).toEqual(['flushed'])
  idle = other
})

test('an acknowledged item is on the disk before, and survives kill -9', async (context) => {
  const strace = await findStrace()
  const acknowledged: string[] = []
  for (let round = 0; round < size(1, 60); round++) {
    const actor = idle ?? (await start())
    idle = undefined
    const file = join(folder, `trace-${round}`)
    const trace =
      strace === undefined || round > 0 ? undefined : await traceProcess(strace, actor.pid, 'fsync,write', file)
    actor.tell(`put ${round}`)
    const enough = 5 + ((round * 7) % 40)
    await actor.hears((said) => said.length > enough)
    const lines = await trace?.stop()
    await actor.kill9()
    acknowledged.push(...actor.said.filter((line) => line !== 'ready'))
    if (lines !== undefined) expect(unsynced(lines)).toEqual([])
  }
  const kept = (await list()).map(({ key }) => key)
  expect(acknowledged.filter((key) => !kept.includes(key))).toEqual([])
  // The last item of each round may be stored without an acknowledgement.
  expect(kept.length - acknowledged.length).toBeLessThanOrEqual(size(1, 60))
  expect(new Set(kept).size).toBe(kept.length)
  if (strace === undefined) missStrace(context)
})

/** Acknowledgements, as strace saw them, before which nothing was synced. */
function unsynced(lines: readonly string[]): string[] {
  const found: string[] = []
  let synced = false
  let acknowledgements = 0
  for (const line of lines) {
    if (/fsync\(\d+\) += 0/.test(line) || /fsync resumed>.*= 0/.test(line)) synced = true
    if (!/write\(1, "0-\d+\\n"/.test(line)) continue
    acknowledgements += 1
    if (!synced) found.push(line)
    synced = false
  }
  return acknowledgements > 0 ? found : ['nothing was acknowledged']
}
