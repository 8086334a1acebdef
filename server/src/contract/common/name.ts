import { NAME_PATTERN, NAME_RULE } from '@ichido/sdk/protocol'
import { z } from 'zod'

export const name = z.string().regex(NAME_PATTERN, NAME_RULE)
