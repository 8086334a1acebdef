import {
  BACKFILL_STATES,
  type BackfillShape,
  DEFAULT_CATCH_UP_WINDOW_SECONDS,
  DEFAULT_QUEUE,
  DEFAULT_TICKS_LIMIT,
  type DefinitionRequest,
  type DefinitionShape,
  JOB_STATES,
  OCCURRENCE_OUTCOMES,
  type OccurrenceShape,
  type ScheduleRequest,
  type ScheduleShape,
  type TickShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { SEQ_SCOPES } from '../core/events/event.ts'
import { toBackoffShape } from '../core/run/job.ts'
import type { DefinitionContent } from '../core/schedule/definition.ts'
import {
  CATCH_UP_WINDOW_SECONDS_MAX,
  CATCH_UPS,
  CRON_LENGTH_MAX,
  OVERLAPS,
  type Schedule,
} from '../core/schedule/schedule.ts'
import { ORIGINS } from '../core/schedule/ticks.ts'
import { instant, listQuery, name, nameParams, time, uuid } from './common.ts'
import { stage, submitRequest } from './submit.ts'
import { toTriggerRuleShape, triggerRule, triggerRuleRequest } from './triggers.ts'

const DAY_SECONDS = 86_400
const TICKS_MAX = 100

const scheduleFields = {
  cron: z
    .string()
    .min(1)
    .max(CRON_LENGTH_MAX)
    .meta({
      description:
        'Minute, hour, day of month, month, day of week; with six fields, the second comes first. It takes `*`, lists, ' +
        'ranges, steps, names (`MON-FRI`, `JAN`), `L`, `W` and `#`. If both days are set, a day that matches either is ' +
        'due. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` work, too.',
    }),
  time_zone: z.string().max(64).meta({ description: 'A name of the IANA database, such as Europe/Berlin' }),
  catch_up: z.enum(CATCH_UPS).meta({
    description: 'Which missed ticks are made: none, the last, or all within the window',
  }),
  catch_up_window_seconds: z.int().min(0).max(CATCH_UP_WINDOW_SECONDS_MAX).meta({
    description: 'Ticks that were missed longer ago are not made',
  }),
  overlap: z.enum(OVERLAPS).meta({
    description:
      'While a job of the definition has not ended, a tick makes the next job (`allow`), is skipped (`skip`), or one tick waits (`queue_one`)',
  }),
  jitter_seconds: z.int().min(0).max(DAY_SECONDS).meta({
    description: 'A job begins up to this much later than its tick',
  }),
  starts_at: z.iso.datetime({ offset: true }).nullable().meta({ description: 'No tick before this instant' }),
  ends_at: z.iso.datetime({ offset: true }).nullable().meta({ description: 'No tick at or after this instant' }),
}

const scheduleRequest = z
  .strictObject({
    ...scheduleFields,
    time_zone: scheduleFields.time_zone.optional(),
    catch_up: scheduleFields.catch_up.optional(),
    catch_up_window_seconds: scheduleFields.catch_up_window_seconds.optional(),
    overlap: scheduleFields.overlap.optional(),
    jitter_seconds: scheduleFields.jitter_seconds.optional(),
    starts_at: scheduleFields.starts_at.optional(),
    ends_at: scheduleFields.ends_at.optional(),
  })
  .meta({ id: 'ScheduleRequest' }) satisfies z.ZodType<ScheduleRequest>

const { kind, queue, payload, priority, labels } = submitRequest.shape
const { max_attempts, backoff, timeout_seconds, lease_ttl_seconds, continuation_seconds } = submitRequest.shape
const { domain, stages, seq_scope } = submitRequest.shape

const content = {
  kind,
  queue: queue.nullable().meta({ description: `Null: "${DEFAULT_QUEUE}"` }),
  payload,
  priority,
  labels,
  max_attempts: max_attempts.nullable(),
  backoff: backoff.nullable(),
  timeout_seconds: timeout_seconds.nullable(),
  lease_ttl_seconds: lease_ttl_seconds.nullable(),
  continuation_seconds: continuation_seconds.nullable(),
  domain: domain.nullable(),
  stages: stages.nullable(),
  seq_scope,
  schedule: scheduleRequest.nullable().optional().meta({ description: 'Null: no schedule' }),
  on: triggerRuleRequest.nullable().optional().meta({ description: 'The triggers that make its jobs; null: none' }),
}

const definitionContent = z.strictObject(content) satisfies z.ZodType<DefinitionRequest>

export type DefinitionInput = z.output<typeof definitionContent>

export const createDefinitionRequest = z.strictObject({ name, ...content }).meta({ id: 'DefinitionRequest' })

export const putDefinitionRequest = z
  .strictObject({
    ...content,
    version: z
      .int()
      .min(1)
      .optional()
      .meta({ description: 'Refuse the change if the definition has another version now' }),
  })
  .meta({ id: 'DefinitionReplacement' })

const ticksLimit = z.int().min(1).max(TICKS_MAX)

export const ticksQuery = z.strictObject({ limit: z.coerce.number().pipe(ticksLimit).default(DEFAULT_TICKS_LIMIT) })

export const previewRequest = z.strictObject({
  schedule: scheduleRequest,
  limit: ticksLimit.default(DEFAULT_TICKS_LIMIT),
})

const schedule = z.object(scheduleFields).meta({ id: 'Schedule' }) satisfies z.ZodType<ScheduleShape>

export const definition = z
  .object({
    definition_id: z.uuid(),
    name: z.string(),
    kind: z.string(),
    queue: z.string().nullable(),
    payload: z.unknown(),
    priority: z.int(),
    labels: z.record(z.string(), z.string()),
    max_attempts: z.int().nullable(),
    backoff: z.object({ base_seconds: z.number(), cap_seconds: z.number(), jitter: z.number() }).nullable(),
    timeout_seconds: z.number().nullable(),
    lease_ttl_seconds: z.int().nullable(),
    continuation_seconds: z.int().nullable(),
    domain: z.string().nullable(),
    stages: z.union([z.literal('eco2'), z.array(stage)]).nullable(),
    seq_scope: z.enum(SEQ_SCOPES),
    schedule: schedule.nullable(),
    on: triggerRule.nullable(),
    paused: z.boolean(),
    paused_at: time.nullable(),
    version: z.int().meta({ description: 'Raised by every change' }),
    user_id: z.string().meta({ description: 'The owner of the jobs that its ticks and triggers make' }),
    next_tick_at: time
      .nullable()
      .meta({ description: 'Null without a schedule, after the end of the schedule, and during a pause' }),
    last_tick_at: time.nullable(),
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'Definition' }) satisfies z.ZodType<DefinitionShape>

export const ticks = z.object({
  data: z.array(
    z
      .object({
        scheduled_for: time,
        local_time: z.iso
          .datetime({ offset: true })
          .meta({ description: 'The same instant in the time zone of the schedule' }),
      })
      .meta({ id: 'Tick' }) satisfies z.ZodType<TickShape>,
  ),
})

/** Missing fields get their defaults. */
export function toSchedule(input: ScheduleRequest): Schedule {
  const ms = (instant: string | null | undefined) => (instant == null ? null : Date.parse(instant))
  return {
    cron: input.cron.trim(),
    timeZone: input.time_zone ?? 'UTC',
    catchUp: input.catch_up ?? 'last',
    catchUpWindowSeconds: input.catch_up_window_seconds ?? DEFAULT_CATCH_UP_WINDOW_SECONDS,
    overlap: input.overlap ?? 'allow',
    jitterSeconds: input.jitter_seconds ?? 0,
    startsAtMs: ms(input.starts_at),
    endsAtMs: ms(input.ends_at),
  }
}

type ContentShape = Pick<DefinitionShape, keyof DefinitionShape & keyof DefinitionRequest>

/** The stored fields with their defaults, for answers and for the audit. */
export function toContentShape(content: DefinitionContent): ContentShape {
  const { policy, stages, schedule, on } = content
  const { backoff } = policy
  return {
    kind: content.kind,
    queue: content.queue,
    payload: JSON.parse(content.payload) as unknown,
    priority: content.priority,
    labels: { ...content.labels },
    max_attempts: policy.max_attempts ?? null,
    backoff: backoff === undefined ? null : toBackoffShape(backoff),
    timeout_seconds: policy.timeout_seconds ?? null,
    lease_ttl_seconds: policy.lease_ttl_seconds ?? null,
    continuation_seconds: policy.continuation_seconds ?? null,
    domain: content.domain,
    stages: stages === null || stages === 'eco2' ? stages : [...stages],
    seq_scope: content.seqScope,
    schedule: schedule === null ? null : toScheduleShape(schedule),
    on: on === null ? null : toTriggerRuleShape(on),
  }
}

function toScheduleShape(schedule: Schedule): ScheduleShape {
  const iso = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString())
  return {
    cron: schedule.cron,
    time_zone: schedule.timeZone,
    catch_up: schedule.catchUp,
    catch_up_window_seconds: schedule.catchUpWindowSeconds,
    overlap: schedule.overlap,
    jitter_seconds: schedule.jitterSeconds,
    starts_at: iso(schedule.startsAtMs),
    ends_at: iso(schedule.endsAtMs),
  }
}

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
    job_state: z
      .enum(JOB_STATES)
      .nullable()
      .meta({ description: 'Null if there is no job, or retention has removed it' }),
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
