import { fork } from 'node:child_process'
import { connect, type Socket } from 'node:net'

export interface Attacker {
  /** The attacker's address, another one of this machine. */
  address: string
  token: string
  workerToken: string
  /** A job of its own, to follow. */
  jobId: string
}

export interface Attack {
  port: number
  attackers: Attacker[]
  /** The silent connections, event streams and long polls of each attacker. */
  silent: number
  streams: number
  polls: number
}

/** The answers of the server. */
export interface AttackReport {
  /** Answers to large JSON, by status. */
  json: Record<string, number>
  /** Connections that are open at the end. */
  open: number
}

export interface Attacking {
  /** Ends it, and tells of it. */
  end(): Promise<AttackReport>
}

/** Attackers in a process of their own. Settles when all of them are at it. */
export async function attack(task: Attack): Promise<Attacking> {
  const child = fork(import.meta.filename, [JSON.stringify(task)], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  const begun = Promise.withResolvers<void>()
  const report = Promise.withResolvers<AttackReport>()
  report.promise.catch(() => {})
  child.on('message', (message: 'begun' | AttackReport) => {
    if (message === 'begun') begun.resolve()
    else report.resolve(message)
  })
  child.on('exit', (code) => {
    for (const { reject } of [begun, report]) reject(new Error(`The attackers have gone, with ${code}`))
  })
  await begun.promise
  return {
    end() {
      child.send('end')
      return report.promise
    },
  }
}

const BODY_BYTES = 16 * 1024 * 1024

/** 16 MiB of tiny names, as many as there can be, and all of them different. */
function tinyNames(): Buffer {
  const body = Buffer.alloc(BODY_BYTES, ' ')
  let at = body.write('{"jobs":[{"kind":"k","payload":{"a":1')
  for (let i = 0; at < BODY_BYTES - 20; i++) at += body.write(`,"${i.toString(36)}":1`, at)
  body.write('}}]}', at)
  return body
}

function head(method: string, path: string, token: string, ...more: string[]): string {
  return [`${method} ${path} HTTP/1.1`, 'Host: localhost', `Authorization: Bearer ${token}`, ...more, '', ''].join(
    '\r\n',
  )
}

class Crew {
  readonly #task: Attack
  readonly #sockets = new Set<Socket>()
  readonly #body = tinyNames()
  readonly json: Record<string, number> = {}

  constructor(task: Attack) {
    this.#task = task
  }

  /** Settles when every attacker has been answered once, and holds what it can. */
  async begin(): Promise<void> {
    const { attackers, silent, streams, polls } = this.#task
    const held = attackers.flatMap((attacker) => [
      ...Array.from({ length: silent }, () => this.#hold(attacker, '')),
      ...Array.from({ length: streams }, () => this.#hold(attacker, streamOf(attacker))),
      ...Array.from({ length: polls }, () => this.#hold(attacker, pollOf(attacker))),
    ])
    await Promise.all([...held, ...attackers.map((attacker) => this.#sendJson(attacker, 0))])
  }

  report(): AttackReport {
    return { json: this.json, open: this.#sockets.size }
  }

  #open({ address }: Attacker): Socket {
    const socket = connect({ port: this.#task.port, host: '127.0.0.1', localAddress: address })
    this.#sockets.add(socket)
    socket.on('error', () => {}).once('close', () => this.#sockets.delete(socket))
    return socket
  }

  /** Connects, says this much, and does so again whenever the server has had enough. */
  #hold(attacker: Attacker, words: string): Promise<void> {
    const socket = this.#open(attacker)
    socket.resume().write(words)
    socket.once('close', () => setTimeout(() => void this.#hold(attacker, words), 100))
    return new Promise((resolve) => socket.once('connect', () => resolve()).once('close', () => resolve()))
  }

  /** Sends large bodies until the process ends; resolves after the first. */
  #sendJson(attacker: Attacker, turn: number): Promise<void> {
    const path = turn % 2 === 0 ? '/v1/jobs' : '/v1/jobs/batch'
    const socket = this.#open(attacker)
    const length = `Content-Length: ${BODY_BYTES}`
    socket.write(head('POST', path, attacker.token, 'Content-Type: application/json', length))
    socket.write(this.#body)
    return new Promise((resolve) => {
      socket.once('data', (answer) => {
        const status = String(answer).split(' ')[1] ?? ''
        this.json[status] = (this.json[status] ?? 0) + 1
        socket.destroy()
      })
      socket.once('close', () => {
        setImmediate(() => void this.#sendJson(attacker, turn + 1))
        resolve()
      })
    })
  }
}

function streamOf({ jobId, token }: Attacker): string {
  return head('GET', `/v1/jobs/${jobId}/events`, token, 'Accept: text/event-stream')
}

function pollOf({ workerToken }: Attacker): string {
  const body = JSON.stringify({ queues: ['attack'], wait_seconds: 50 })
  const headers = ['Content-Type: application/json', `Content-Length: ${body.length}`]
  return head('POST', '/v1/leases', workerToken, ...headers) + body
}

const [task] = process.argv.slice(2)
if (process.argv[1] === import.meta.filename && task !== undefined) {
  const crew = new Crew(JSON.parse(task) as Attack)
  process.on('disconnect', () => process.exit())
  process.on('message', () => process.send?.(crew.report(), () => process.exit()))
  await crew.begin()
  process.send?.('begun')
}
