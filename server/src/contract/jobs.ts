import { JOB_STATES } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { parseKey } from '../core/keys/key.ts'
import { userName } from './access.ts'
import { instant, listQuery } from './common/list.ts'
import { LABEL_NAME_PATTERN, name } from './submit.ts'

export const BATCH_MAX = 1_000

/** The items are checked one by one, so that a bad one is answered in its place and the others are carried out. */
export const batchRequest = z.strictObject({
  jobs: z
    .array(z.unknown().meta({ $ref: '#/components/schemas/SubmitRequestInput' }))
    .min(1)
    .max(BATCH_MAX),
})

const states = z
  .string()
  .transform((text) => text.split(','))
  .pipe(z.array(z.enum(JOB_STATES)).max(JOB_STATES.length))
  .meta({ description: `One or more of ${JOB_STATES.join(', ')}, separated by commas` })

const label = z
  .string()
  .max(512)
  .transform((text, context) => {
    const [labelName = '', ...value] = text.split(':')
    if (LABEL_NAME_PATTERN.test(labelName) && value.length > 0 && !text.includes('\u0000')) {
      return { name: labelName, value: value.join(':') }
    }
    context.addIssue({ code: 'custom', message: 'must be name:value' })
    return z.NEVER
  })
  .meta({ description: 'A label of the job, as name:value' })

const key = z
  .string()
  .transform((text, context) => {
    const parsed = parseKey(text)
    if (parsed.ok) return parsed.key
    context.addIssue({ code: 'custom', message: parsed.problem })
    return z.NEVER
  })
  .meta({ description: 'The idempotency key that the job was submitted with' })

export const listJobsQuery = z.strictObject({
  state: states.optional(),
  queue: name.optional(),
  kind: name.optional(),
  user_id: userName.optional(),
  label: label.optional(),
  key: key.optional(),
  created_after: instant.optional().meta({ description: 'Made at this instant or later' }),
  created_before: instant.optional().meta({ description: 'Made before this instant' }),
  ...listQuery,
})

/** Proxies commonly cut a request off after 60 s. */
export const WAIT_SECONDS_MAX = 50

const waitSeconds = z.coerce
  .number()
  .min(0)
  .max(WAIT_SECONDS_MAX)
  .default(0)
  .meta({ description: 'How long the call waits for something new' })

export const resultQuery = z.strictObject({ wait_seconds: waitSeconds })

export const eventsQuery = z.strictObject({
  after: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .meta({ description: 'The cursor of the last event that the caller has seen' }),
  last_seq: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .meta({ description: 'Instead of `after`: the seq of the last event that the caller has seen' }),
  stream_token: z
    .string()
    .max(1_000)
    .optional()
    .meta({ description: 'A stream token for this job, in place of an API token, which does not belong in a URL' }),
  wait_seconds: waitSeconds,
})
