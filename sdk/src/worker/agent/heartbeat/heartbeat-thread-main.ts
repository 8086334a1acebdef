import { writeSync } from 'node:fs'
import { parentPort } from 'node:worker_threads'
import type { LeaseShape } from '../../../protocol/index.ts'
import { lineForTerminal } from '../../../terminal.ts'
import { elapsedMs, type Mark } from '../../loop/clocks.ts'
import { Stopped } from '../../loop/failure.ts'
import { Heart } from '../../loop/heart.ts'
import type { Hold } from '../../loop/held-lease.ts'
import { httpWorkerTransport } from '../../loop/http.ts'
import { machineClocks, nodeWorld } from '../world.ts'

/** What the thread is started with. */
export interface HeartThreadData {
  role: 'heart'
  url: string
  token: string
  /** Counted up by the thread that runs the handlers, for as long as it does anything at all. */
  pulse: SharedArrayBuffer
}

/** What it is told, and what it tells. */
export type HeartOrder =
  | { hold: LeaseShape; sent: Mark }
  | { confirm: string; sent: Mark }
  | { ask: string }
  | { aborted: string }
  | { runEnded: string }
  | { letGo: string }
  | { token: string }
export type HeartNotice =
  | { leaseId: string; confirmed: Mark }
  | { leaseId: string; stopped: { code: Stopped['code']; message: string } }
  | { leaseId: string; asked: { held: boolean } | { trouble: string } }
  | { trouble: string }

/**
 * Heartbeats in a thread of their own: a handler that computes does not lose its lease, and one that never ends does not
 * keep it. Whoever still runs when its job may be handed on takes the whole process with it.
 */
export function beatInThread({ url, token, pulse }: HeartThreadData): void {
  const port = parentPort
  if (port === null) throw new Error('This is a thread')
  const tell = (notice: HeartNotice) => port.postMessage(notice)
  let current = token
  const transport = httpWorkerTransport({ url, token: () => current, world: nodeWorld })
  const onTrouble = (error: unknown) => tell({ trouble: wordsOf(error) })
  const isAlive = watchPulse(new Int32Array(pulse))
  const heart = new Heart(
    { world: nodeWorld, clocks: machineClocks, transport, onTrouble },
    { overrun: endProcess, mayBeat: isAlive },
  )
  const holds = new Map<string, { hold: Hold; run: AbortController; callOff: () => void }>()

  function begin(lease: LeaseShape, sent: Mark): void {
    const leaseId = lease.lease_id
    const run = new AbortController()
    run.signal.addEventListener('abort', () => {
      const { reason } = run.signal
      if (reason instanceof Stopped) tell({ leaseId, stopped: { code: reason.code, message: reason.message } })
    })
    const hold = heart.hold(lease, sent, run)
    hold.onConfirmed((confirmed) => tell({ leaseId, confirmed }))
    holds.set(leaseId, { hold, run, callOff: limitTime(lease, run) })
  }

  port.on('message', (order: HeartOrder) => {
    if ('hold' in order) return begin(order.hold, order.sent)
    if ('token' in order) {
      current = order.token
      return
    }
    const [leaseId = ''] = Object.values(order).filter((value) => typeof value === 'string')
    const held = holds.get(leaseId)
    if (held === undefined) return
    if ('confirm' in order) held.hold.confirm(order.sent)
    else if ('aborted' in order) held.run.abort()
    else if ('ask' in order) {
      held.hold.ask().then(
        (isHeld) => tell({ leaseId, asked: { held: isHeld } }),
        (error: unknown) => tell({ leaseId, asked: { trouble: wordsOf(error) } }),
      )
    } else {
      held.callOff()
      if ('runEnded' in order) held.hold.runEnded()
      else {
        held.hold.letGo()
        holds.delete(leaseId)
      }
    }
  })
}

/** The handlers' thread sets its own timer too, but may not come to hear it. */
function limitTime({ timeout_seconds: seconds }: LeaseShape, run: AbortController): () => void {
  if (seconds === null) return () => {}
  const stopped = new Stopped('TIMEOUT', `The run took longer than ${seconds} s`)
  return nodeWorld.after(seconds * 1000, () => run.abort(stopped))
}

/** A thread that did nothing else for the continuation time of a run is stuck in it. */
function watchPulse(pulse: Int32Array): (lease: LeaseShape) => boolean {
  let last = { count: 0, seen: machineClocks() }
  return (lease) => {
    const now = machineClocks()
    const count = Atomics.load(pulse, 0)
    if (count !== last.count) last = { count, seen: now }
    return elapsedMs(last.seen, now) < (lease.continuation_seconds || lease.lease_ttl_seconds) * 1000
  }
}

function endProcess({ kind, job_id: jobId, attempt }: LeaseShape): void {
  const what = `job ${jobId}, attempt ${attempt}, kind ${kind}`
  writeSync(2, `ichido: a handler ignored its signal, so this process ends: ${lineForTerminal(what)}\n`)
  process.kill(process.pid, 'SIGKILL')
}

function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
