import { FIRST_ID } from '../../core/run/job.ts'
import type { Limits } from '../../services/deps.ts'
import {
  dropWaitingTriggers,
  findUnprocessed,
  findWaitingTriggers,
  type Made,
  type OnTopic,
  type Processed,
  processTriggers,
  tryWaitingTriggers,
  type Unprocessed,
  type WaitingDefinition,
} from '../../store/triggers/process-triggers.ts'
import { BATCH_CHARS_MAX, eachByItself, type MakerDeps, wakeQueues } from '../election/batches.ts'
import type { Leading } from '../election/elect.ts'

interface TriggerOptions extends MakerDeps {
  limits: Pick<Limits, 'payloadBytesMax'>
  onTrouble(where: string, error: unknown): void
}

/** Makes the jobs of triggers in the order of their arrival, for one term, in bounded batches. */
export function createTrigger(options: TriggerOptions, leading: Leading): () => Promise<number | null> {
  const { world, store, bus, meter, settings, limits, fairTags, onTrouble } = options
  const maker = { newId: world.uuid, tagsFor: fairTags.tagsFor }
  /** Definitions with waiting triggers take turns in the order of their ids. */
  let tried = FIRST_ID

  function tell(made: readonly Made[]): void {
    for (const { outcome } of made) meter.triggerDecided(outcome)
    wakeQueues(bus, made)
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
      store.write({ ...tryWaitingTriggers(leading, some, limits.payloadBytesMax, maker), failFastOnLock: true })
    // A locked user must not delay all others.
    const made = await eachByItself({ attempt, leading, onTrouble }, live, ({ userId }) => `triggers of ${userId}`)
    tell(made)
    return made.length > 0 || dropped > 0 || tried !== FIRST_ID
  }

  async function processNew(max: number): Promise<number> {
    const { triggers, definitions } = await store.read(findUnprocessed(max))
    if (triggers.length === 0) return 0
    const some = bounded(triggers, definitions, max)
    const process = (some: readonly Unprocessed[], hasty: boolean) => {
      const topics = new Set(some.map(({ topic }) => topic))
      const userIds = definitions.flatMap(({ topic, userId }) => (topics.has(topic) ? [userId] : []))
      const batch = { triggers: some, userIds, hasty }
      return store.write({ ...processTriggers(leading, batch, limits.payloadBytesMax, maker), failFastOnLock: true })
    }
    const done = await process(some, false).catch(async () => {
      // A locked user or definition must not delay all others.
      const results: Processed[] = []
      for (const [topic, own] of Map.groupBy(some, ({ topic }) => topic)) {
        if (!leading.trusted()) break
        await process(own, true).then(
          (result) => results.push(result),
          (error: unknown) => onTrouble(`triggers of the topic ${topic}`, error),
        )
      }
      return {
        triggers: results.reduce((sum, { triggers }) => sum + triggers, 0),
        made: results.flatMap(({ made }) => made),
      }
    })
    tell(done.made)
    return done.triggers
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
