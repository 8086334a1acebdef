import { HOOK_SCHEMES, type HookRequest, type HookShape, type PutHookResponse } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery } from './common/list.ts'
import { name } from './common/name.ts'

export const hookParams = z.object({ name })
export const listHooksQuery = z.strictObject(listQuery)

const scheme = z.enum(HOOK_SCHEMES).meta({
  description: '`standard`: Standard Webhooks (also under its `svix-` headers). `github`: X-Hub-Signature-256.',
})
const topic = name.meta({
  description:
    'The topic of its triggers. With the scheme `github`, the name of the event is appended: `github` becomes `github.push`',
})

export const putHookRequest = z
  .strictObject({
    scheme,
    topic,
    secret: z.string().max(256).optional().meta({
      description: 'Default: a new hook gets a new secret, and an existing hook keeps its secret',
    }),
  })
  .meta({ id: 'HookRequest' }) satisfies z.ZodType<HookRequest>

const fields = {
  name: z.string(),
  scheme,
  topic: z.string(),
  user_id: z.string().meta({ description: 'The owner of its triggers' }),
  created_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
}

export const hook = z.object(fields).meta({ id: 'Hook' }) satisfies z.ZodType<HookShape>

export const putHookResponse = z
  .object({ ...fields, secret: z.string().nullable().meta({ description: 'Shown only once, if the server made it' }) })
  .meta({ id: 'PutHookResponse' }) satisfies z.ZodType<PutHookResponse>
