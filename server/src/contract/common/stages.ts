import { UNDECLARED_STAGE } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { SEQ_PER_ATTEMPT, SEQ_SCOPES } from '../../core/events/seq.ts'
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
  final: z
    .boolean()
    .optional()
    .meta({ description: 'Marks the last stage, for pages that show progress; the server ignores it' }),
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
      if (name === 'run') refuse(i, 'name', 'is reserved for the events of the server')
      if (before.some((other) => other.name === name)) refuse(i, 'name', 'is used twice')
      if (to < from) refuse(i, 'to', 'must not be less than from')
      if (before.some((other) => from <= other.to && to >= other.from)) refuse(i, 'from', 'overlaps another stage')
      if (final && before.some((other) => other.final))
        refuse(i, 'final', 'is set for another stage, too; only one stage can be the last')
    })
  })

export const eventPolicy = {
  domain: name.optional().meta({ description: 'A group of kinds for its events; default: the kind' }),
  stages: z
    .union([z.literal('eco2'), declared], {
      error: 'must be a list of stages, each with name, from and to, or the preset "eco2"',
    })
    .optional()
    .meta({
      description: 'The range of seq numbers of each stage, or the name of the preset; default: one open stage',
    }),
  seq_scope: z.enum(SEQ_SCOPES).optional().meta({
    description:
      'Whether all attempts share one count (`job`, the default of the preset) or each attempt counts from the start (`attempt`, the default)',
  }),
}
