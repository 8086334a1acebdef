import { BACKFILL_STATES, type BackfillShape, OCCURRENCE_OUTCOMES, type OccurrenceShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { ORIGINS } from '../core/schedule/ticks.ts'
import { instant, listQuery, nameParams, time, uuid } from './common.ts'

export const BACKFILL_TICKS_MAX = 10_000

/** No body, or an empty object. */
export const runRequest = z.strictObject({}).nullish()

export const occurrencesQuery = z.strictObject({
  from: instant.optional().meta({ description: 'Ticks at this instant or later' }),
  to: instant.optional().meta({ description: 'Ticks before this instant; default: now. Future ticks are `pending`' }),
  ...listQuery,
})

export const backfillParams = nameParams.extend({ backfill_id: uuid })

export const backfillRequest = z.strictObject({
  from: instant.meta({ description: 'Ticks at this instant or later' }),
  to: instant.optional().meta({
    description: 'Ticks before this instant, which must not be in the future; default: now',
  }),
  dry_run: z.boolean().optional().meta({ description: 'Only count, change nothing' }),
})

export const occurrence = z
  .object({
    scheduled_for: time,
    outcome: z.enum(OCCURRENCE_OUTCOMES).meta({
      description:
        '`job`, `skipped` and the waiting ones are recorded. `pending`: the tick is in the future or just due. ' +
        '`missing`: the tick is due and has no entry',
    }),
    job_id: z.uuid().nullable().meta({ description: 'It stays when retention has removed the job' }),
    reason: z.string().nullable(),
    origin: z.enum(ORIGINS),
    skipped_until: time.nullable().meta({ description: 'This skip stands for all ticks up to this one' }),
    created_at: time.nullable().meta({ description: 'When the tick was recorded; null for a tick without an entry' }),
    late_seconds: z.number().nullable().meta({
      description: 'The time from the tick until its job was made, or until now; null if it does not apply',
    }),
  })
  .meta({ id: 'Occurrence' }) satisfies z.ZodType<OccurrenceShape>

export const backfill = z
  .object({
    backfill_id: z.uuid(),
    definition: z.string(),
    actor: z.string(),
    state: z.enum(BACKFILL_STATES),
    from: time,
    to: time,
    matched: z.int().meta({ description: 'Ticks in the range, by the rule with which the backfill began' }),
    made: z.int(),
    made_before: z.int().meta({ description: 'Ticks that already have a job or wait for one' }),
    skipped: z.int().meta({ description: 'Ticks that were skipped and stay skipped' }),
    began_at: time,
    ended_at: time.nullable(),
  })
  .meta({ id: 'Backfill' }) satisfies z.ZodType<BackfillShape>

export const backfillDryRun = z.object({
  dry_run: z.literal(true),
  matched: z.int(),
  made_before: z.int(),
  skipped: z.int(),
  would_make: z.int(),
})

/** A place in the ledger is an instant, in milliseconds. */
export const isInstant = (text: string): boolean => /^-?\d{1,15}$/.test(text)
