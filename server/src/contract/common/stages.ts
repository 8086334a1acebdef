import { UNDECLARED_STAGE } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { SEQ_PER_ATTEMPT } from '../../core/events/seq.ts'
import { name } from './name.ts'

/** What a job, or a definition for its jobs, says about events. */

const STAGES_MAX = 100

const seq = z
  .int()
  .min(UNDECLARED_STAGE.to + 1)
  .max(SEQ_PER_ATTEMPT - 1)
export const stage = z.strictObject({
  name,
  from: seq,
  to: seq,
  final: z.boolean().optional().meta({ description: 'It is the last one: for pages, the server makes nothing of it' }),
})

const declared = z
  .array(stage)
  .min(1)
  .max(STAGES_MAX)
  .superRefine((list, context) => {
    const refuse = (i: number, field: string, message: string) =>
      context.addIssue({ code: 'custom', path: [i, field], message })
    list.forEach(({ name, from, to, final }, i) => {
      const before = list.slice(0, i)
      if (name === 'run') refuse(i, 'name', 'is the stage of what the server itself tells')
      if (before.some((other) => other.name === name)) refuse(i, 'name', 'is there twice')
      if (to < from) refuse(i, 'to', 'must not be less than from')
      if (before.some((other) => from <= other.to && to >= other.from)) refuse(i, 'from', 'lies in another stage')
      if (final && before.some((other) => other.final))
        refuse(i, 'final', 'is said of another stage already: only one can be the last')
    })
  })

export const eventPolicy = {
  domain: name.optional().meta({ description: 'Of its events; default: the kind' }),
  stages: z
    .union([z.literal('eco2'), declared], { error: 'must be "eco2", or a list of stages, each with name, from and to' })
    .optional()
    .meta({ description: 'The seq numbers of each stage of its events, or the preset eco2' }),
  seq_scope: z
    .enum(['job', 'attempt'])
    .optional()
    .meta({ description: 'Whether seq is counted once for the job (default with eco2) or anew for each attempt' }),
}
