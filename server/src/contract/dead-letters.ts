import {
  type DeadLetterDetail,
  type DeadLetterGroup,
  type DeadLetterGroups,
  type DeadLetterShape,
  OPERATION_STATES,
  type RedriveShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { userName } from './access.ts'
import { instant, isUuid, listQuery, name, time, uuid } from './common.ts'
import { jobDetail, searchText } from './jobs.ts'

const OPERATION_JOBS_MAX = 1_000
const PER_SECOND_MAX = 10_000

const filterFields = {
  queue: name.optional(),
  kind: name.optional(),
  error_code: searchText.optional(),
  user_id: userName.optional(),
  dead_after: instant.optional().meta({ description: 'Became a dead letter at this instant or later' }),
  dead_before: instant.optional().meta({ description: 'Became a dead letter before this instant' }),
  text: searchText.optional().meta({ description: "A text that the error's message contains" }),
}

export const groupsQuery = z.strictObject(filterFields)
export type DeadFilterInput = z.output<typeof groupsQuery>

export const listDeadLettersQuery = z.strictObject({ ...filterFields, ...listQuery })

/** The fields of a request for an operation, beside its action and filter. */
export const operationFields = {
  job_ids: z.array(uuid).min(1).max(OPERATION_JOBS_MAX).optional(),
  dry_run: z.boolean().optional().meta({ description: 'Only count, change nothing' }),
  per_second: z
    .int()
    .min(1)
    .max(PER_SECOND_MAX)
    .optional()
    .meta({ description: 'The maximum rate; default: as fast as possible' }),
}

export const deadFilter = groupsQuery.optional().meta({ description: 'All that match; `{}` matches every dead letter' })

export const hasOneChoice = (body: { job_ids?: unknown; filter?: unknown }): boolean =>
  (body.job_ids === undefined) !== (body.filter === undefined)
export const ONE_CHOICE = { path: ['job_ids'], error: 'or filter must be given, and not both' }

export const redriveRequest = z
  .strictObject({ ...operationFields, filter: deadFilter })
  .refine(hasOneChoice, ONE_CHOICE)

export const retryRequest = z.strictObject({
  payload: z.unknown().optional().meta({ description: 'Submit a new job with this payload in place of the old job' }),
})

const deadLetterFields = z.object({
  job_id: z.uuid(),
  run_id: z.uuid(),
  queue: z.string(),
  kind: z.string(),
  user_id: z.string(),
  error_code: z.string(),
  error_message: z.string(),
  retry_count: z.int(),
  dead_at: time,
  redrive_id: z.uuid().nullable().meta({ description: 'The last redrive that included it' }),
})

export const deadLetter = deadLetterFields.meta({ id: 'DeadLetter' }) satisfies z.ZodType<DeadLetterShape>

export const deadLetterDetail = deadLetterFields
  .extend({ job: jobDetail })
  .meta({ id: 'DeadLetterDetail' }) satisfies z.ZodType<DeadLetterDetail>

const group = z
  .object({
    queue: z.string(),
    kind: z.string(),
    error_code: z.string(),
    count: z.int(),
    first_dead_at: time,
    last_dead_at: time,
    sample_message: z.string(),
    counts: z.array(z.int()).meta({ description: 'How many became dead letters in each step, the oldest step first' }),
  })
  .meta({ id: 'DeadLetterGroup' }) satisfies z.ZodType<DeadLetterGroup>

export const groups = z
  .object({
    from: time.meta({ description: 'The beginning of the first step; the last step ends after now' }),
    step_seconds: z.number().meta({
      description: 'From a minute to seven hours: the steps reach back to the oldest dead letter, or a week',
    }),
    data: z.array(group),
  })
  .meta({ id: 'DeadLetterGroups' }) satisfies z.ZodType<DeadLetterGroups>

export const deadFilterShape = z.object({
  queue: z.string().optional(),
  kind: z.string().optional(),
  error_code: z.string().optional(),
  user_id: z.string().optional(),
  dead_after: time.optional(),
  dead_before: time.optional(),
  text: z.string().optional(),
})

export const redrive = z
  .object({
    redrive_id: z.uuid(),
    state: z.enum(OPERATION_STATES),
    actor: z.string(),
    filter: deadFilterShape.nullable().meta({ description: 'Null: the redrive has a list of jobs' }),
    per_second: z.int().nullable(),
    matched: z.int(),
    redriven: z.int(),
    waiting: z.int().meta({ description: 'Jobs that found the quota full and will be tried again' }),
    skipped: z
      .int()
      .meta({ description: 'Jobs that were retried by someone else, or whose key names another job now' }),
    began_at: time,
    ended_at: time.nullable(),
  })
  .meta({ id: 'Redrive' }) satisfies z.ZodType<RedriveShape>

export const dryRun = z.object({ dry_run: z.literal(true), matched: z.int() })

/** Dead letters are listed by the time of their end, so a place in the list is an instant and a job. */
export const isDeadPlace = (text: string): boolean => /^\d{1,15}:[0-9a-f-]{36}$/.test(text) && isUuid(text.slice(-36))
