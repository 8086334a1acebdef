import type { BackfillShape, OccurrenceShape } from '@ichido/sdk/protocol'
import { BACKFILL_STATES, OCCURRENCE_OUTCOMES } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { instant, listQuery } from './common/list.ts'
import { definitionParams } from './definitions.ts'

export const BACKFILL_TICKS_MAX = 10_000

/** None, or an empty one. */
export const runRequest = z.strictObject({}).nullish()

export const occurrencesQuery = z.strictObject({
  from: instant.optional().meta({ description: 'Ticks at this instant or later' }),
  to: instant.optional().meta({ description: 'Ticks before this instant; default: now. Later ones are `pending`' }),
  ...listQuery,
})

export const backfillsQuery = z.strictObject(listQuery)
export const backfillParams = definitionParams.extend({ backfill_id: z.uuid().toLowerCase() })

export const backfillRequest = z.strictObject({
  from: instant.meta({ description: 'Ticks at this instant or later' }),
  to: instant.optional().meta({
    description: 'Ticks before this instant, which must not lie in the future; default: now',
  }),
  dry_run: z.boolean().optional().meta({ description: 'Only count' }),
})

const time = z.iso.datetime()

export const occurrence = z
  .object({
    scheduled_for: time,
    outcome: z.enum(OCCURRENCE_OUTCOMES).meta({
      description:
        '`job`, `skipped` or waiting: as recorded. `pending`: to come, or due just now. `missing`: due, and nobody has ' +
        'dealt with it',
    }),
    job_id: z.uuid().nullable().meta({ description: 'Stays when retention has removed the job' }),
    reason: z.string().nullable(),
    origin: z.enum(['schedule', 'backfill']),
    skipped_until: time.nullable().meta({ description: 'This skip stands for all ticks up to this one' }),
    created_at: time.nullable().meta({ description: 'When it was recorded; null for what is not' }),
    late_seconds: z.number().nullable().meta({
      description: 'From the tick until its job was made, or until now; null where it says nothing',
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
    matched: z.int().meta({ description: 'Ticks in the range, by the rule that it began with' }),
    made: z.int(),
    made_before: z.int().meta({ description: 'Ticks whose job was made before, or waits to be' }),
    skipped: z.int().meta({ description: 'Ticks that were skipped, and stay so' }),
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

/** The ledger is read back from an instant. */
export function encodeInstant(list: string, atMs: number): string {
  return Buffer.from(`${list}:${atMs}`).toString('base64url')
}

export function decodeInstant(list: string, cursor: string): number | null {
  const text = Buffer.from(cursor, 'base64url').toString('latin1')
  const at = /^-?\d{1,15}$/.exec(text.slice(list.length + 1))?.[0]
  return at !== undefined && text === `${list}:${at}` ? Number(at) : null
}
