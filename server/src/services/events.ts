import { IchidoError } from '@ichido/sdk/protocol'
import { type Caller, can } from '../core/roles.ts'
import { isFinal } from '../core/run-state.ts'
import { storedSeq } from '../core/seq.ts'
import { findEvents, publishEvent } from '../store/commands/events.ts'
import { runIdOf } from '../store/commands/run-facts.ts'
import { integer, type Row, text } from '../store/statement.ts'
import type { Deps } from './deps.ts'
import { notFound, requireId } from './not-found.ts'
import { iso } from './render.ts'
import { waitFor } from './wait.ts'

export interface EventShape {
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

export interface EventService {
  /** False when the event was stored before. */
  publish(workerId: string, leaseId: string, event: { stage: string; seq: number; data: unknown }): Promise<boolean>
  /** The events after a cursor; waits up to `waitMs` when there is none yet. */
  read(
    caller: Caller,
    jobId: string,
    after: number,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<{ events: EventShape[]; ended: boolean }>
}

const PAGE_MAX = 1_000
const DATA_BYTES_MAX = 64 * 1024

export function createEventService(deps: Deps): EventService {
  const { store, bus } = deps
  return {
    async publish(workerId, leaseId, { stage, seq, data }) {
      const runId = runIdOf(leaseId)
      if (runId === null) throw notFound('lease', leaseId)
      const text = JSON.stringify(data ?? null)
      if (Buffer.byteLength(text) > DATA_BYTES_MAX) {
        throw new IchidoError('PAYLOAD_TOO_LARGE', `An event's data may have at most ${DATA_BYTES_MAX} bytes`)
      }
      const seqOf = (attempt: number) => storedSeq('attempt', attempt, seq)
      const outcome = await store.write(publishEvent({ runId, workerId, leaseId, stage, seqOf, data: text }))
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      if (outcome.kind === 'stored') bus.wake([`job:${outcome.jobId}`])
      return outcome.kind === 'stored'
    },

    async read(caller, jobId, after, waitMs, signal) {
      requireId('job', jobId)
      const look = async () => {
        const found = await store.read(findEvents(jobId, after, PAGE_MAX))
        if (found === null || !(can(caller, 'readAll') || found.userId === caller.userId)) {
          throw notFound('job', jobId)
        }
        const events = found.events.map(renderEvent)
        const seen = events.at(-1)?.cursor ?? after
        const ended = isFinal(found.state) && seen >= found.lastN
        return events.length > 0 || ended ? { events, ended } : null
      }
      return (await waitFor(deps, [`job:${jobId}`], waitMs, look, signal)) ?? { events: [], ended: false }
    },
  }
}

function renderEvent(row: Row): EventShape {
  return {
    cursor: integer(row, 'n'),
    stage: text(row, 'stage'),
    seq: integer(row, 'seq'),
    data: JSON.parse(text(row, 'data')) as unknown,
    timestamp: iso(integer(row, 'created_at')),
  }
}
