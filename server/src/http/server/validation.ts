import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { FastifyRouteSchemaDef, FastifySchemaCompiler } from 'fastify/types/schema.js'
import { z } from 'zod'
import { describeProblem } from '../../core/json/problem.ts'

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
    if (parsed.success) return { value: parsed.data }
    return { error: httpPart === 'params' ? noSuch(parsed.error, data) : refusal(parsed.error, httpPart) }
  }
}

function refusal(error: z.ZodError, httpPart: string | undefined): IchidoError {
  const { field, message } = describeProblem(error, httpPart === 'querystring' ? 'query parameter' : 'field')
  return new IchidoError('INVALID_PAYLOAD', message, { field })
}

/** A path that cannot be the name of anything is the path of nothing. */
function noSuch(error: z.ZodError, params: unknown): IchidoError {
  const { field, message } = describeProblem(error)
  const [issue] = error.issues
  if (issue?.code !== 'invalid_format' || issue.format !== 'uuid')
    return new IchidoError('NOT_FOUND', message, { field })
  const { [field]: given } = z.record(z.string(), z.string()).parse(params)
  const what = field.replace(/_id$/, '').replaceAll('_', ' ')
  return new IchidoError('NOT_FOUND', `There is no ${what} ${JSON.stringify(given)}: ids look like ${AN_ID}`, { field })
}

const AN_ID = '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07'
