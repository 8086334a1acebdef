import { DEFAULT_CONTINUATION_SECONDS, DEFAULT_LEASE_TTL_SECONDS, type QueueShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { time } from './common.ts'
import { failedRequest } from './leases.ts'

const DAY_SECONDS = 86_400
const RESULT_TTL_SECONDS_MAX = 366 * DAY_SECONDS
const FATAL_CODES_MAX = 100

export const putQueueRequest = z.strictObject({
  paused: z.boolean().optional().meta({ description: 'No run is leased from the queue; leased runs continue' }),
  max_concurrent: z
    .int()
    .min(1)
    .max(1_000_000)
    .nullable()
    .optional()
    .meta({ description: 'How many runs workers may hold at a time; null: no limit' }),
  lease_ttl_seconds: z
    .int()
    .min(1)
    .max(DAY_SECONDS)
    .nullable()
    .optional()
    .meta({ description: `The default for jobs that do not set it; null: ${DEFAULT_LEASE_TTL_SECONDS}` }),
  continuation_seconds: z
    .int()
    .min(0)
    .max(DAY_SECONDS)
    .nullable()
    .optional()
    .meta({ description: `The default for jobs that do not set it; null: ${DEFAULT_CONTINUATION_SECONDS}` }),
  result_ttl_seconds: z.int().min(0).max(RESULT_TTL_SECONDS_MAX).nullable().optional().meta({
    description:
      'How long jobs can be read after they ended for good. Then their status, result and files are 404. null or 0: as long as the job is kept',
  }),
  fatal_error_codes: z
    .array(failedRequest.shape.error_code)
    .max(FATAL_CODES_MAX)
    .nullable()
    .optional()
    .meta({ description: 'A failure with one of these codes is not retried; the job becomes a dead letter at once' }),
})

export const queue = z
  .object({
    name: z.string(),
    paused: z.boolean(),
    paused_at: time.nullable(),
    max_concurrent: z.int().nullable(),
    lease_ttl_seconds: z.int().nullable(),
    continuation_seconds: z.int().nullable(),
    result_ttl_seconds: z.int().nullable(),
    fatal_error_codes: z.array(z.string()).nullable(),
    ready: z.int().meta({ description: 'Runs that can be leased now' }),
    delayed: z.int().meta({ description: 'Runs that are not due yet' }),
    running: z.int().meta({ description: 'Runs that workers hold' }),
    oldest_ready_seconds: z.number().nullable(),
  })
  .meta({ id: 'Queue' }) satisfies z.ZodType<QueueShape>
