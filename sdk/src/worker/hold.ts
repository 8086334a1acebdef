import type { LeaseShape } from '../protocol/index.ts'
import { Stopped } from './failure.ts'
import type { WorkerDeps } from './transport.ts'

/** Heartbeats in one lease time: two may get lost before the lease does. */
const BEATS = 3
/** The control plane waits for the whole continuation time before it hands the job on; by then this has stopped. */
const CONTINUATION_PART = 0.8

export interface Hold {
  /** Aborts when nobody can say any more that the lease is ours. */
  readonly lost: AbortSignal
  letGo(): void
}

/**
 * Keeps a lease by heartbeats, and stops the run when it is lost, its cancellation is wished, or no heartbeat was
 * confirmed for so long that the job may soon be given to somebody else.
 */
export function holdLease(lease: LeaseShape, run: AbortController, deps: WorkerDeps): Hold {
  const { world, transport, onTrouble } = deps
  const leaseMs = lease.lease_ttl_seconds * 1000
  const aloneMs = leaseMs + lease.continuation_seconds * 1000 * CONTINUATION_PART
  const lost = new AbortController()
  let ended = false
  let callOffBeat = () => {}
  let callOffEnd = () => {}

  function letGo(): void {
    ended = true
    callOffBeat()
    callOffEnd()
  }

  function lose(message: string): void {
    letGo()
    run.abort(new Stopped('LEASE_LOST', message))
    lost.abort()
  }

  /** Counted from when the heartbeat was sent: the answer may have taken its time. */
  function confirmed(sentMs: number): void {
    callOffEnd()
    const leftMs = Math.max(0, sentMs + aloneMs - world.monotonic())
    callOffEnd = world.after(leftMs, () => lose('No heartbeat was confirmed in time'))
  }

  async function beat(): Promise<void> {
    const sentMs = world.monotonic()
    try {
      const { held, cancelRequested } = await transport.heartbeat(lease.lease_id)
      if (ended) return
      if (!held) return lose('The lease is lost')
      confirmed(sentMs)
      if (cancelRequested) run.abort(new Stopped('CANCELED', 'The job was canceled'))
    } catch (error) {
      onTrouble(error)
    }
    if (!ended) callOffBeat = world.after(leaseMs / BEATS, beat)
  }

  confirmed(world.monotonic())
  callOffBeat = world.after(leaseMs / BEATS, beat)
  return { lost: lost.signal, letGo }
}
