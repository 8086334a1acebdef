import {
  ALERT_RULES,
  type AlertShape,
  type BackupShape,
  JOB_STATES,
  type LoopShape,
  NAME_RULE,
  type QueueRateShape,
  type SeriesPointShape,
  type SeriesShape,
  type SettingShape,
  type SystemShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { OTHER_QUEUES, SERIES_RANGES } from '../core/limits/series.ts'
import { isName, listQuery, time, yesOrNo } from './common.ts'

/** Any name, because the answer to an unknown name lists the known ones. */
export const settingParams = z.object({ name: z.string().max(100) })

export const putSettingRequest = z.strictObject({
  value: z.number().meta({ description: "Within the setting's bounds; a whole number if it is a count" }),
})

export const setting = z
  .object({
    name: z.string(),
    value: z.number().meta({ description: 'The value in force on the node that answers' }),
    default: z.number(),
    min: z.number(),
    max: z.number(),
    source: z
      .enum(['default', 'stored', 'environment'])
      .meta({ description: 'Where the value comes from; the environment overrides a stored value' }),
    description: z.string(),
    updated_at: time.nullable().meta({ description: 'When the stored value was last changed' }),
    updated_by: z.string().nullable(),
  })
  .meta({ id: 'Setting' }) satisfies z.ZodType<SettingShape>

export const listAlertsQuery = z.strictObject({
  all: yesOrNo.optional().meta({ description: 'Also list closed alerts' }),
  rule: z.enum(ALERT_RULES).optional().meta({ description: 'Only alerts of this rule' }),
  ...listQuery,
})

export const alert = z
  .object({
    alert_id: z.uuid(),
    rule: z.enum(ALERT_RULES),
    subject: z.string(),
    message: z.string(),
    opened_at: time,
    closed_at: time.nullable().meta({ description: 'Null while it is open' }),
  })
  .meta({ id: 'Alert' }) satisfies z.ZodType<AlertShape>

export const backup = z
  .object({
    name: z.string().meta({ description: 'The name of the file in `DATA_DIR/backups`' }),
    rows: z.int(),
    bytes: z.int(),
  })
  .meta({ id: 'Backup' }) satisfies z.ZodType<BackupShape>

const loop = z
  .object({
    name: z.string(),
    interval_seconds: z.number(),
    last_run_at: time.nullable().meta({ description: 'Null before the first run has ended' }),
    last_run_ms: z.number().nullable(),
    late: z.boolean().meta({ description: 'True if no run has ended for five intervals' }),
  })
  .meta({ id: 'Loop' }) satisfies z.ZodType<LoopShape>

export const system = z
  .object({
    node: z.object({ version: z.string(), node_version: z.string(), started_at: time }),
    leader: z.object({
      epoch: z.int().meta({ description: 'The number of the current term, or of the last one' }),
      present: z.boolean().meta({ description: 'False if no node leads now' }),
      this_node: z.boolean().meta({ description: 'True if the node that answers leads' }),
      since: time.nullable().meta({ description: 'Null if the node that answers does not lead' }),
    }),
    loops: z.array(loop).meta({ description: 'The loops of the node that answers' }),
    store: z.object({
      engine: z.enum(['sqlite', 'postgres']),
      engine_version: z.string(),
      location: z.string(),
      schema_version: z.int(),
      bytes: z.int(),
      durable: z.boolean(),
      durability: z.record(z.string(), z.string()),
      pooled: z.boolean(),
      clock_skew_ms: z.number().meta({ description: "The store's clock minus the clock of the node" }),
    }),
    redis: z.enum(['ok', 'away', 'full']).nullable().meta({ description: 'Null without Redis' }),
    disks: z.array(z.object({ folder: z.string(), free_percent: z.number() })),
  })
  .meta({ id: 'System' }) satisfies z.ZodType<SystemShape>

export const stats = z.record(z.enum(JOB_STATES), z.int())

const queueOfSeries = z
  .string()
  .refine((text) => text === OTHER_QUEUES || isName(text), `${NAME_RULE}, or ${OTHER_QUEUES}`)

export const seriesQuery = z.strictObject({
  range: z.enum(SERIES_RANGES).meta({
    description: 'The steps are 1 minute for `15m` and `1h`, 15 minutes for `24h`, and 2 hours for `7d`',
  }),
  queue: queueOfSeries.optional().meta({
    description: 'Default: all queues together. `*`: the queues beyond the 200 that have their own series, together',
  }),
})

const count = z.int()
const gauge = z.int().nullable()
const milliseconds = z
  .object({ p50: z.number().nullable(), p99: z.number().nullable() })
  .meta({ description: 'From a histogram whose buckets grow by √2; null without values' })

const seriesPoint = z
  .object({
    at: time.meta({ description: 'The beginning of the step' }),
    complete: z.boolean().meta({ description: 'False for the last step, which has not ended yet' }),
    submitted: count.meta({ description: 'Jobs that were submitted, or made by ticks and triggers' }),
    started: count.meta({ description: 'Runs that started' }),
    succeeded: count,
    failed: count.meta({ description: 'Runs, not jobs: a job that fails and is retried counts each time' }),
    timed_out: count,
    canceled: count,
    retried: count.meta({ description: 'Jobs that got a next run: by their policy, a person or a redrive' }),
    dead_lettered: count.meta({ description: 'Jobs that became dead letters' }),
    key_hits: count.meta({ description: 'Submissions whose key named an existing job' }),
    cost: z.number().meta({ description: 'The cost that workers reported with results' }),
    wait_ms: milliseconds,
    run_ms: milliseconds,
    ready: gauge.meta({ description: 'The most runs that could be leased, of all samples in the step' }),
    delayed: gauge,
    running: gauge.meta({ description: 'Runs that workers hold' }),
    oldest_waiting_seconds: z.number().nullable(),
    dead_letters: gauge,
    workers_online: gauge.meta({ description: 'The fewest workers online, of all samples; over all queues' }),
    sampled: z.boolean().meta({ description: 'False if the leader took no sample in the step; then gauges are null' }),
    sampled_minutes: z.int().meta({ description: 'For how many minutes of the step there is a sample' }),
  })
  .meta({ id: 'SeriesPoint' }) satisfies z.ZodType<SeriesPointShape>

export const series = z
  .object({
    range: z.enum(SERIES_RANGES),
    step_seconds: z.int(),
    from: time,
    to: time,
    queue: z.string().nullable(),
    queues: z
      .array(z.string())
      .meta({ description: 'The queues with figures in the range, the most active first; at most 200' }),
    points: z.array(seriesPoint).meta({ description: 'One for each step, the oldest first' }),
  })
  .meta({ id: 'Series' }) satisfies z.ZodType<SeriesShape>

export const queueRate = z
  .object({
    queue: z.string(),
    submitted_per_minute: z.number().meta({ description: 'Jobs that were submitted, or made by ticks and triggers' }),
    ended_per_minute: z.number().meta({ description: 'Runs that ended' }),
  })
  .meta({ id: 'QueueRate' }) satisfies z.ZodType<QueueRateShape>
