import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { FastifyRouteSchemaDef, FastifySchemaCompiler } from 'fastify/types/schema.js'
import { z } from 'zod'
import { describeProblem } from '../core/contract/problem.ts'

/** The schemas that describe the API check what comes in; what goes out is typed, and sent as it is. */
export function installValidation(app: FastifyInstance): void {
  app.setValidatorCompiler(compileValidator)
  app.setSerializerCompiler(() => JSON.stringify)
}

const compileValidator: FastifySchemaCompiler<unknown> = ({ schema, httpPart }: FastifyRouteSchemaDef<unknown>) => {
  if (!(schema instanceof z.ZodType)) throw new TypeError('A route describes its requests with zod')
  return (data: unknown) => {
    // Fastify says null for a body that is not there: then every field is missing.
    const parsed = schema.safeParse(httpPart === 'body' ? (data ?? {}) : data)
    return parsed.success ? { value: parsed.data } : { error: refusal(parsed.error, httpPart) }
  }
}

function refusal(error: z.ZodError, httpPart: string | undefined): IchidoError {
  const { field, message } = describeProblem(error, httpPart === 'querystring' ? 'query parameter' : 'field')
  // A path that cannot be the name of anything is the path of nothing.
  return new IchidoError(httpPart === 'params' ? 'NOT_FOUND' : 'INVALID_PAYLOAD', message, { field })
}
