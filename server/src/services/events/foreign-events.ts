import { isUuid } from '../../contract/common/list.ts'
import type { ForeignEvent, IngestedEvent } from '../../core/events/event.ts'
import { findJsonProblem } from '../../core/json/strict-json.ts'
import { BadValue } from '../../core/node/store-errors.ts'
import { type IngestOutcome, ingestEvents } from '../../store/events/ingest-events.ts'
import { Batcher } from '../batching/batcher.ts'
import type { Deps } from '../deps.ts'
import { DATA_BYTES_MAX } from './events.ts'

/** Takes in the events that other programs put into the streams of Redis. */
export interface ForeignEvents {
  /**
   * Stores each once, those of a job in the order in which they are given. Null for those that cannot be stored: nobody waits
   * for an answer, so they are only counted, as is null, for what is no event. Throws when the store is away; then all of them are to come again.
   */
  ingest(events: readonly (ForeignEvent | null)[]): Promise<(IngestedEvent | null)[]>
}

/** One batch at a time: two of them could change the order of a job's events. */
const BATCH = { itemsMax: 500, bytesMax: 8 * 1024 * 1024, inFlightMax: 1 }

const REFUSED: IngestOutcome = { kind: 'refused' }

export function createForeignEvents(deps: Deps): ForeignEvents {
  const { world, store, bus, meter } = deps
  const batcher = new Batcher<ForeignEvent, IngestOutcome>({
    name: 'ingest',
    world,
    ...BATCH,
    bytesOf: ({ data }) => data.length + 200,
    userOf: ({ jobId }) => jobId,
    onBatch: meter.batch,
    run: (items) => store.write(ingestEvents(items)),
  })

  async function ingestAll(events: readonly ForeignEvent[]): Promise<IngestOutcome[]> {
    const settled = await batcher.addAll(events, (event) => event)
    return settled.map((one) => {
      if (one.status === 'fulfilled') return one.value
      if (one.reason instanceof BadValue) return REFUSED
      throw one.reason
    })
  }

  return {
    async ingest(events) {
      const problems = events.map(problemOf)
      const fit = events.flatMap((event, i) => (event === null || problems[i] !== null ? [] : event))
      const ingested = (await ingestAll(fit)).values()
      return problems.map((problem) => {
        const outcome = problem ?? ingested.next().value ?? REFUSED
        meter.ingested(outcome.kind, 1)
        if (outcome.kind === 'unknown' || outcome.kind === 'refused') return null
        const { event, last } = outcome
        if (outcome.kind === 'stored') bus.wake([`job:${event.jobId}`], { cursor: event.n, events: [event] })
        return { event, last }
      })
    },
  }
}

/** What would be refused of a worker is refused here. */
function problemOf(event: ForeignEvent | null): IngestOutcome | null {
  if (event === null) return REFUSED
  const { jobId, data } = event
  if (!isUuid(jobId)) return { kind: 'unknown' }
  return Buffer.byteLength(data) > DATA_BYTES_MAX || findJsonProblem(data, 'data') !== null ? REFUSED : null
}
