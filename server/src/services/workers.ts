import { IchidoError } from '@ichido/sdk/protocol'
import * as store from '../store/commands/workers.ts'
import { hashToken, sameHash } from './access.ts'
import type { Deps } from './deps.ts'

/** Who a worker token belongs to. */
export interface WorkerIdentity {
  workerId: string
  /** The queues it may lease from; null: all of them. */
  queues: readonly string[] | null
  tokenHash: string
}

export interface WorkerService {
  /** Null when the token is unknown or its time is up. */
  authenticate(token: string): Promise<WorkerIdentity | 'revoked' | null>
}

export const WORKER_TOKEN_PREFIX = 'ichido_worker_'

/**
 * A token that was just seen is trusted for this long without asking the store. On another node a revoked worker is let
 * in for as long, but it changes nothing there: its leases are fenced, and whoever leases looks at its row again.
 */
const TRUST_MS = 1_000
const TRUSTED_MAX = 10_000

export function createWorkerService({ world, store: db }: Deps): WorkerService {
  const trusted = new Map<string, { identity: WorkerIdentity; untilMs: number }>()

  return {
    async authenticate(token) {
      const hash = hashToken(token)
      const known = trusted.get(hash)
      if (known !== undefined && known.untilMs > world.monotonic()) return known.identity
      trusted.delete(hash)
      const found = await db.read(store.findWorkerToken(hash))
      if (found === null || !sameHash(found.tokenHash, hash) || found.state === 'expired') return null
      if (found.state === 'revoked') return 'revoked'
      const { workerId, queues } = found
      const identity = { workerId, queues, tokenHash: hash }
      if (trusted.size >= TRUSTED_MAX) trusted.clear()
      trusted.set(hash, { identity, untilMs: world.monotonic() + TRUST_MS })
      return identity
    },
  }
}

/** Refuses a worker that asks for work of a queue it was not enrolled for. */
export function requireQueues(worker: Pick<WorkerIdentity, 'queues'>, queues: readonly string[]): void {
  const { queues: allowed } = worker
  const other = allowed === null ? undefined : queues.find((queue) => !allowed.includes(queue))
  if (other === undefined) return
  throw new IchidoError('FORBIDDEN', `This worker may not lease from the queue ${other}`, { queue: other })
}
