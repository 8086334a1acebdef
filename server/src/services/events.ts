import { IchidoError } from '@ichido/sdk/protocol'
import { type Caller, can } from '../core/roles.ts'
import { isFinal } from '../core/run-state.ts'
import { storedSeq } from '../core/seq.ts'
import { findEvents, publishEvents } from '../store/commands/events.ts'
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

export interface NewEvent {
  stage: string
  seq: number
  data?: unknown
}

export interface EventService {
  /** False when the event was stored before. */
  publish(workerId: string, leaseId: string, event: NewEvent): Promise<boolean>
  /** The same for several events of one run, in one transaction. */
  publishAll(workerId: string, leaseId: string, events: readonly NewEvent[]): Promise<boolean[]>
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
  const { store, bus, evidence } = deps
  async function publishAll(workerId: string, leaseId: string, events: readonly NewEvent[]): Promise<boolean[]> {
    const runId = runIdOf(leaseId)
    if (runId === null) throw notFound('lease', leaseId)
    const items = events.map(({ stage, seq, data }) => {
      const text = JSON.stringify(data ?? null)
      if (Buffer.byteLength(text) > DATA_BYTES_MAX) {
        throw new IchidoError('PAYLOAD_TOO_LARGE', `An event's data may have at most ${DATA_BYTES_MAX} bytes`)
      }
      return { stage, seqOf: (attempt: number) => storedSeq('attempt', attempt, seq), data: text }
    })
    const outcome = await store.write(publishEvents({ runId, workerId, leaseId, events: items }))
    if (outcome.kind === 'refused') {
      evidence.refused(runId, outcome.reason)
      throw new IchidoError(outcome.reason)
    }
    const repeats = outcome.accepted.filter((stored) => !stored).length
    if (repeats > 0) evidence.count(outcome.jobId, 'duplicatesRefused', repeats)
    if (outcome.accepted.includes(true)) bus.wake([`job:${outcome.jobId}`])
    return outcome.accepted
  }

  return {
    async publish(workerId, leaseId, event) {
      return (await publishAll(workerId, leaseId, [event])).includes(true)
    },
    publishAll,

    async read(caller, jobId, after, waitMs, signal) {
      requireId('job', jobId)
      const look = async () => {
        const found = await store.read(findEvents(jobId, after, PAGE_MAX))
        if (found === null || !(can(caller, 'readAll') || found.userId === caller.userId)) {
          throw notFound('job', jobId)
        }
        const events = found.events.map(renderEvent)
        const seen = events.at(-1)?.cursor ?? after
        // A page that is not full has all that is kept; retention may have removed the last ones.
        const ended = isFinal(found.state) && (seen >= found.lastN || events.length < PAGE_MAX)
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
