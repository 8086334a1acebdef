import type { TriggerRequest } from '@ichido/sdk/protocol'
import type { Caller } from '../../core/limits/roles.ts'
import type { Definition, DefinitionContent } from '../../core/schedule/definition.ts'
import type { TriggerRule } from '../../core/schedule/trigger.ts'
import { createTrigger } from '../../leader/duties/trigger.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Settings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import type { Row } from '../../store/statement.ts'
import type { Term } from '../../store/system/term.ts'
import { sql, unique } from '../store/store.ts'
import type { LeaderScene } from './leader-scene.ts'
import { seize, trusting } from './reaper.ts'
import { define, fail } from './ticker.ts'

/** A new definition without a schedule, with its own topic. */
export function defineOn(
  store: Store,
  rule: Partial<TriggerRule> = {},
  changes: Partial<DefinitionContent> & { userId?: string } = {},
): Promise<Definition & { on: TriggerRule }> {
  const on: TriggerRule = { topic: unique('topic'), where: {}, whenPaused: 'keep', ...rule }
  return define(store, null, { on, ...changes }).then((definition) => ({ ...definition, on }))
}

/** Records triggers of one topic, one for each of the data, and returns their ids. */
export async function happen(
  { services }: Pick<LeaderScene, 'services'>,
  topic: string,
  data: readonly unknown[] = [{}],
  caller: Caller = LOCAL_ADMIN,
): Promise<string[]> {
  const items = data.map((one): TriggerRequest => ({ topic, dedupe_key: unique('key'), data: one }))
  return (await services.triggers.record(caller, items)).map(({ trigger_id }) => trigger_id)
}

interface TriggererChanges {
  term?: Term
  batchMax?: number
  onTrouble?: (where: string, error: unknown) => void
}

/** The leader's duty, which the test calls. */
export async function triggerer(
  { services, bus, store, world }: Pick<LeaderScene, 'services' | 'bus' | 'store' | 'world'>,
  { term, batchMax, onTrouble = fail }: TriggererChanges = {},
): Promise<() => Promise<number | null>> {
  const settings: Settings = {
    get: (name) => (name === 'trigger_batch_max' && batchMax !== undefined ? batchMax : services.settings.get(name)),
  }
  const { deps, fairTags } = services
  return createTrigger(
    { ...deps, world, store, bus, settings, fairTags, onTrouble },
    trusting(term ?? (await seize(store))),
  )
}

/** The outcomes of one definition, in order of arrival. */
export function triggerLedger(store: Store, { id }: Pick<Definition, 'id'>): Promise<Row[]> {
  return sql(
    store,
    `SELECT * FROM ichido.trigger_outcomes WHERE definition_id = $1 ORDER BY triggered_at, trigger_id`,
    id,
  )
}
