import { fork } from 'node:child_process'
import { connect, type Socket } from 'node:net'

/** The results of a crowd's readers. */
export interface CrowdReport {
  /** The number of readers that got every event once, in order, and the end. */
  whole: number
  /** The problems of the other readers. */
  problems: string[]
}

export interface Crowd {
  /** Resolves when all awake readers have come to the end. */
  readers: Promise<CrowdReport>
  /** Lets the sleeping readers begin. Resolves when they, too, have come to the end. */
  wakeUp(): Promise<CrowdReport>
  close(): void
}

interface Task {
  port: number
  path: string
  count: number
  /** This many readers do not read before `wakeUp`. */
  asleep: number
  events: number
}

/** Many readers of the same events, in a separate process, so that the memory of this process is the server's. */
export async function openCrowd(task: Task): Promise<Crowd> {
  const child = fork(import.meta.filename, [JSON.stringify(task)], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  const reports = [Promise.withResolvers<CrowdReport>(), Promise.withResolvers<CrowdReport>()] as const
  const opened = Promise.withResolvers<void>()
  child.on('message', (message: { opened: true } | { asleep: boolean; report: CrowdReport }) => {
    if ('opened' in message) opened.resolve()
    else reports[message.asleep ? 1 : 0].resolve(message.report)
  })
  child.on('exit', (code) => {
    for (const { reject } of [opened, ...reports]) reject(new Error(`The crowd has gone, with ${code}`))
  })
  for (const { promise } of reports) promise.catch(() => {})
  await opened.promise
  return {
    readers: reports[0].promise,
    wakeUp() {
      child.send('wake up')
      return reports[1].promise
    },
    close: () => void child.kill(),
  }
}

const MARK = Buffer.from('\nid: ')
const END = Buffer.from('\nevent: end\n')

/** Looks only at ids: events are large, and there are many readers. */
class Reader {
  problem: string | null = null
  last = 0
  ended = false
  #rest: Buffer = Buffer.alloc(0)

  take(part: Buffer): void {
    const all = Buffer.concat([this.#rest, part])
    let from = 0
    for (let at = all.indexOf(MARK); at >= 0; at = all.indexOf(MARK, from)) {
      const end = all.indexOf('\n', at + MARK.length)
      if (end < 0) break
      const id = Number(all.toString('latin1', at + MARK.length, end))
      if (id !== this.last + 1) this.problem ??= `${id} after ${this.last}`
      this.last = id
      from = end
    }
    if (all.includes(END)) this.ended = true
    this.#rest = all.subarray(Math.max(from, all.length - 64))
  }
}

async function runCrowd({ port, path, count, asleep, events }: Task): Promise<void> {
  const sockets: Socket[] = []
  const groups = [count - asleep, asleep].map((size) => Array.from({ length: size }, () => new Reader()))
  const tell = (isAsleep: boolean, readers: readonly Reader[]) => {
    for (const reader of readers) {
      if (reader.last !== events || !reader.ended) reader.problem ??= `ended at ${reader.last}`
    }
    const problems = readers.flatMap(({ problem }) => (problem === null ? [] : [problem]))
    process.send?.({ asleep: isAsleep, report: { whole: readers.length - problems.length, problems } })
  }
  for (const [group, readers] of groups.entries()) {
    let open = readers.length
    for (const reader of readers) {
      const socket = connect(port, '127.0.0.1')
      sockets.push(socket)
      if (group === 1) socket.pause()
      socket.on('data', (part: Buffer) => reader.take(part))
      socket.on('error', (error) => {
        reader.problem ??= error.message
      })
      socket.on('close', () => {
        if (--open === 0) tell(group === 1, readers)
      })
      if (group === 1) socket.pause()
      await new Promise<void>((resolve) => socket.once('connect', () => resolve()))
      socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n`)
    }
  }
  process.on('message', () => {
    for (const socket of sockets) socket.resume()
  })
  process.on('disconnect', () => process.exit())
  process.send?.({ opened: true })
}

const [, script, task] = process.argv
if (script === import.meta.filename && task !== undefined) void runCrowd(JSON.parse(task) as Task)
