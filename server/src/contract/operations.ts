import {
  type JOB_STATES,
  type JobFilterShape,
  OPERATION_ACTIONS,
  OPERATION_STATES,
  type OperationDryRun,
  type OperationShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { time } from './common.ts'
import { deadFilter, deadFilterShape, hasOneChoice, ONE_CHOICE, operationFields } from './dead-letters.ts'
import { jobCounts, jobFilter } from './jobs.ts'

export const operationRequest = z
  .discriminatedUnion('action', [
    z.strictObject({
      action: z.enum(['cancel', 'retry']),
      ...operationFields,
      filter: jobFilter
        .optional()
        .meta({ description: 'All that match, in a state that the action can change; `{}` matches every such job' }),
    }),
    z.strictObject({ action: z.literal('redrive'), ...operationFields, filter: deadFilter }),
  ])
  .refine(hasOneChoice, ONE_CHOICE)

const jobFilterShape = z.object({
  state: z.custom<(typeof JOB_STATES)[number]>((value) => typeof value === 'string').optional(),
  queue: z.string().optional(),
  kind: z.string().optional(),
  user_id: z.string().optional(),
  label: z.string().optional(),
  key: z.string().optional(),
  short_id: z.string().optional(),
  error_code: z.string().optional(),
  text: z.string().optional(),
  waiting_longer_than_seconds: z.number().optional(),
  created_after: time.optional(),
  created_before: time.optional(),
} satisfies Record<keyof JobFilterShape, z.ZodType>)

export const operation = z
  .object({
    operation_id: z.uuid(),
    action: z.enum(OPERATION_ACTIONS),
    state: z.enum(OPERATION_STATES),
    filter: z
      .object({ ...jobFilterShape.shape, ...deadFilterShape.shape })
      .nullable()
      .meta({ description: 'The fields of the request; null: the operation has a list of jobs' }),
    job_ids: z.array(z.uuid()).nullable().meta({
      description: 'The jobs of the list that could be changed when the operation began; null: it has a filter',
    }),
    per_second: z.int().nullable(),
    matched: z.int(),
    done: z.int(),
    waiting: z.int().meta({ description: 'Only in a redrive: jobs that found the quota full and will be tried again' }),
    skipped: z.int().meta({ description: 'Jobs whose state changed meanwhile, or whose key names another job now' }),
    refused: z.int().meta({ description: 'Jobs that a full quota kept from a retry' }),
    created_by: z.string(),
    created_at: time,
    ended_at: time.nullable(),
  })
  .meta({ id: 'Operation' }) satisfies z.ZodType<OperationShape>

export const operationDryRun = z
  .object({
    dry_run: z.literal(true),
    action: z.enum(OPERATION_ACTIONS),
    matched: z.int(),
    capped: z.boolean().meta({ description: 'There may be more: the server looks at a limited number of jobs' }),
    by_state: jobCounts.shape.by_state,
  })
  .meta({ id: 'OperationDryRun' }) satisfies z.ZodType<OperationDryRun>
