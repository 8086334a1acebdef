import { FIRST_ID } from '../../core/run/job.ts'
import type { Limits } from '../../services/deps.ts'
import type { Command } from '../../store/port.ts'
import type { Maker } from '../../store/schedules/definition-jobs.ts'
import {
  dropWaitingTriggers,
  findUnprocessed,
  findWaitingTriggers,
  type Made,
  type OnTopic,
  processTriggers,
  tryWaitingTriggers,
  type Unprocessed,
  type WaitingDefinition,
} from '../../store/triggers/process-triggers.ts'
import { BATCH_CHARS_MAX, eachByItself, type MakerDeps, makeJobs } from '../election/batches.ts'
import type { Leading } from '../election/elect.ts'

interface TriggerOptions extends MakerDeps {
  limits: Pick<Limits, 'payloadBytesMax'>
  onTrouble(where: string, error: unknown): void
}

/** Makes the jobs of triggers in the order of their arrival, for one term, in bounded batches. */
export function createTrigger(options: TriggerOptions, leading: Leading): () => Promise<number | null> {
  const { store, meter, settings, limits, onTrouble } = options
  /** Definitions with waiting triggers take turns in the order of their ids. */
  let tried = FIRST_ID

  async function make<T>(commandOf: (maker: Maker) => Command<T>, madeIn: (answer: T) => readonly Made[]): Promise<T> {
    const failingFast = (maker: Maker) => ({ ...commandOf(maker), failFastOnLock: true })
    const answer = await makeJobs(options, failingFast, madeIn)
    for (const { outcome } of madeIn(answer)) meter.triggerDecided(outcome)
    return answer
  }

  /** Returns true if there is more to do at once. */
  async function tryWaiting(max: number): Promise<boolean> {
    const found = await store.read(findWaitingTriggers(tried, max))
    const waiting = fitting(found)
    tried =
      found.length === max || waiting.length < found.length ? (waiting.at(-1)?.definitionId ?? FIRST_ID) : FIRST_ID
    let dropped = 0
    for (const { definitionId, userId } of waiting) {
      if (userId === null) dropped += await store.write(dropWaitingTriggers(leading, definitionId, max))
    }
    const live = waiting.filter(({ userId }) => userId !== null)
    const attempt = (some: readonly WaitingDefinition[]) =>
      make(
        (maker) => tryWaitingTriggers(leading, some, limits.payloadBytesMax, maker),
        (made) => made,
      )
    // A locked user must not delay all others.
    const made = await eachByItself({ attempt, leading, onTrouble }, live, ({ userId }) => `triggers of ${userId}`)
    return made.length > 0 || dropped > 0 || tried !== FIRST_ID
  }

  async function processNew(max: number): Promise<number> {
    const { triggers, definitions } = await store.read(findUnprocessed(max))
    if (triggers.length === 0) return 0
    const some = bounded(triggers, definitions, max)
    const process = async (some: readonly Unprocessed[], hasty: boolean): Promise<number> => {
      const topics = new Set(some.map(({ topic }) => topic))
      const userIds = definitions.flatMap(({ topic, userId }) => (topics.has(topic) ? [userId] : []))
      const batch = { triggers: some, userIds, hasty }
      const { triggers } = await make(
        (maker) => processTriggers(leading, batch, limits.payloadBytesMax, maker),
        ({ made }) => made,
      )
      return triggers
    }
    return process(some, false).catch(async () => {
      // A locked user or definition must not delay all others.
      let done = 0
      for (const [topic, own] of Map.groupBy(some, ({ topic }) => topic)) {
        if (!leading.trusted()) break
        done += await process(own, true).catch((error: unknown) => {
          onTrouble(`triggers of the topic ${topic}`, error)
          return 0
        })
      }
      return done
    })
  }

  return async () => {
    const max = settings.get('trigger_batch_max')
    // Waiting triggers arrived earlier.
    const moreWaits = await tryWaiting(max).catch((error: unknown) => {
      onTrouble('triggers that wait', error)
      return false
    })
    return (await processNew(max)) > 0 || moreWaits ? 0 : null
  }
}

/** Takes the first triggers that make at most `max` jobs and fit into a batch; at least one. */
function bounded(triggers: readonly Unprocessed[], definitions: readonly OnTopic[], max: number): Unprocessed[] {
  const byTopic = Map.groupBy(definitions, ({ topic }) => topic)
  let [jobs, chars] = [0, 0]
  return triggers.filter(({ topic, dataChars }, i) => {
    const own = byTopic.get(topic) ?? []
    jobs += own.length
    chars += dataChars + own.reduce((sum, { payloadChars }) => sum + payloadChars + dataChars, 0)
    return i === 0 || (jobs <= max && chars <= BATCH_CHARS_MAX)
  })
}

/** Takes the first triggers of the first definitions that fit into a batch; at least one. */
function fitting(waiting: readonly WaitingDefinition[]): WaitingDefinition[] {
  let chars = 0
  return waiting.flatMap((definition) => {
    if (chars > BATCH_CHARS_MAX) return []
    const triggers = definition.triggers.filter(({ chars: own }, i) => {
      chars += own
      return i === 0 || chars <= BATCH_CHARS_MAX
    })
    return [{ ...definition, triggers }]
  })
}
