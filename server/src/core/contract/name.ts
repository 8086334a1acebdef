import { z } from 'zod'

/** Kinds, queues, stages, domains: plain enough for URLs, file names, metrics and shells. */
export const NAME_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/
export const name = z
  .string()
  .regex(NAME_PATTERN, 'must be 1 to 128 letters, digits, dots, colons, dashes or underscores')
