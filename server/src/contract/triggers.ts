import {
  HOOK_SCHEMES,
  type HookRequest,
  type HookShape,
  type PutHookResponse,
  type RecordedTriggerShape,
  TRIGGER_OUTCOMES,
  TRIGGER_STATES,
  TRIGGERS_MAX,
  type TriggerDetail,
  type TriggerEntryShape,
  type TriggerOutcomeShape,
  type TriggerRequest,
  type TriggerRuleRequest,
  type TriggerRuleShape,
  type TriggerShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { KEY_MAX_LENGTH } from '../core/keys/key.ts'
import { CONDITIONS_MAX, type TriggerRule, WHEN_PAUSED } from '../core/schedule/trigger.ts'
import { dedupeKey, listQuery, name, time, uuid } from './common.ts'

const scalar = z.union([z.string(), z.number(), z.boolean(), z.null()], {
  error: 'must be a string, a number, true, false or null',
})

const ruleFields = {
  topic: name,
  where: z
    .record(z.string(), scalar)
    .refine((where) => Object.keys(where).length <= CONDITIONS_MAX, `must have at most ${CONDITIONS_MAX} entries`)
    .meta({
      description:
        'Paths in `data` and the values that must be there: `{"order.state": "paid"}`. All must match. A backslash ' +
        'escapes a dot in a name',
    }),
  when_paused: z.enum(WHEN_PAUSED).meta({
    description: 'Triggers that are processed during a pause wait for its end (`keep`) or are skipped (`skip`)',
  }),
}

export const triggerRuleRequest = z
  .strictObject({ ...ruleFields, where: ruleFields.where.optional(), when_paused: ruleFields.when_paused.optional() })
  .meta({ id: 'TriggerRuleRequest' }) satisfies z.ZodType<TriggerRuleRequest>

export const triggerRule = z.object(ruleFields).meta({ id: 'TriggerRule' }) satisfies z.ZodType<TriggerRuleShape>

/** Missing fields get their defaults. */
export function toTriggerRule(input: TriggerRuleRequest): TriggerRule {
  return { topic: input.topic, where: input.where ?? {}, whenPaused: input.when_paused ?? 'keep' }
}

export function toTriggerRuleShape({ topic, where, whenPaused }: TriggerRule): TriggerRuleShape {
  return { topic, where: { ...where }, when_paused: whenPaused }
}

const key = dedupeKey.meta({
  description: `A key that identifies what happened: 1 to ${KEY_MAX_LENGTH} visible ASCII characters`,
})
const data = z.unknown().optional().meta({ description: 'Any JSON up to 256 KiB; default null' })

export const triggerRequest = z
  .strictObject({ topic: name, dedupe_key: key, data })
  .meta({ id: 'TriggerRequest' }) satisfies z.ZodType<TriggerRequest>

/** One trigger, or several under `triggers`. */
export const recordRequest = z
  .strictObject({
    topic: name.optional(),
    dedupe_key: key.optional(),
    data,
    triggers: z
      .array(triggerRequest)
      .min(1)
      .max(TRIGGERS_MAX)
      .optional()
      .meta({ description: 'Several triggers, instead of the other fields' }),
  })
  .superRefine(({ triggers, ...one }, context) => {
    const [beside] = Object.keys(one)
    if (triggers === undefined) {
      const missing = triggerRequest.safeParse(one).error?.issues ?? []
      for (const issue of missing) context.addIssue({ ...issue })
    } else if (beside !== undefined) {
      context.addIssue({ code: 'custom', message: 'and triggers exclude each other', path: [beside] })
    }
  })
  .meta({ id: 'RecordTriggersRequest' })

export const triggerParams = z.object({ trigger_id: uuid })

export const listTriggersQuery = z.strictObject({
  topic: name.optional(),
  definition: name.optional().meta({ description: 'Only triggers in the ledger of this definition' }),
  state: z.enum(TRIGGER_STATES).optional(),
  ...listQuery,
})

export const recordedTrigger = z
  .object({
    trigger_id: z.uuid(),
    topic: z.string(),
    dedupe_key: z.string(),
    created_at: time,
    duplicate: z.boolean().meta({ description: 'The key was known, and this is the trigger that was stored first' }),
  })
  .meta({ id: 'RecordedTrigger' }) satisfies z.ZodType<RecordedTriggerShape>

export const recordResponse = z.union([recordedTrigger, z.object({ data: z.array(recordedTrigger) })])

const made = {
  outcome: z.enum(TRIGGER_OUTCOMES),
  job_id: z.uuid().nullable().meta({ description: 'It stays when retention has removed the job' }),
  reason: z.string().nullable(),
  field: z.string().nullable().meta({ description: 'The path that `data` does not have, if that is the reason' }),
  updated_at: time,
}

const outcome = z
  .object({
    definition_id: z.uuid(),
    definition: z.string().nullable().meta({ description: 'Null: it was deleted' }),
    ...made,
  })
  .meta({ id: 'TriggerOutcome' }) satisfies z.ZodType<TriggerOutcomeShape>

export const triggerEntry = z
  .object({ trigger_id: z.uuid(), topic: z.string(), dedupe_key: z.string(), triggered_at: time, ...made })
  .meta({ id: 'TriggerEntry' }) satisfies z.ZodType<TriggerEntryShape>

const triggerFields = z.object({
  trigger_id: z.uuid(),
  topic: z.string(),
  dedupe_key: z.string(),
  user_id: z.string(),
  state: z.enum(TRIGGER_STATES),
  created_at: time,
  processed_at: time.nullable().meta({ description: 'When the leader processed it' }),
  outcomes: z.array(outcome).meta({ description: 'The outcome for each definition' }),
})

export const triggerShape = triggerFields.meta({ id: 'Trigger' }) satisfies z.ZodType<TriggerShape>

export const triggerDetail = triggerFields
  .extend({ data: z.unknown() })
  .meta({ id: 'TriggerDetail' }) satisfies z.ZodType<TriggerDetail>

const scheme = z.enum(HOOK_SCHEMES).meta({
  description: '`standard`: Standard Webhooks (also under its `svix-` headers). `github`: X-Hub-Signature-256.',
})
const topic = name.meta({
  description:
    'The topic of its triggers. With the scheme `github`, the name of the event is appended: `github` becomes `github.push`',
})

export const putHookRequest = z
  .strictObject({
    scheme,
    topic,
    secret: z.string().max(256).optional().meta({
      description: 'Default: a new hook gets a new secret, and an existing hook keeps its secret',
    }),
  })
  .meta({ id: 'HookRequest' }) satisfies z.ZodType<HookRequest>

const hookFields = {
  name: z.string(),
  scheme,
  topic: z.string(),
  user_id: z.string().meta({ description: 'The owner of its triggers' }),
  created_at: time,
  updated_at: time,
}

export const hook = z.object(hookFields).meta({ id: 'Hook' }) satisfies z.ZodType<HookShape>

export const putHookResponse = z
  .object({
    ...hookFields,
    secret: z.string().nullable().meta({ description: 'Shown only once, if the server made it' }),
  })
  .meta({ id: 'PutHookResponse' }) satisfies z.ZodType<PutHookResponse>
