import { ERRORS, type ErrorCode } from '@ichido/sdk/protocol'
import type { FastifyInstance, RouteOptions } from 'fastify'
import { z } from 'zod'
import { errorBody } from '../../contract/common.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reads the header Idempotency-Key. */
    takesKey?: true
  }
}

/** A route as its description needs it. */
export type DescribedRoute = Pick<RouteOptions, 'url' | 'method' | 'schema' | 'config'>

/**
 * All routes that are registered after this call. Answers are sent without a check, so only the description reads their
 * schemas.
 */
export function collectDescribed(app: FastifyInstance): readonly DescribedRoute[] {
  const routes: DescribedRoute[] = []
  app.addHook('onRoute', (route) => {
    const { url, method, schema, config = {} } = route
    if (schema === undefined || schema.hide) return
    // Fastify makes a HEAD route for each GET.
    if (method !== 'HEAD') routes.push({ url, method, schema, config })
    const { response: _, ...requests } = schema
    route.schema = requests
  })
  return routes
}

/** The errors of any route with a caller. */
const EVERYWHERE: readonly ErrorCode[] = [
  'INVALID_PAYLOAD',
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'OPEN_MODE_REFUSED',
  'CSRF_REFUSED',
  'RATE_LIMITED',
  'HEADERS_TOO_LARGE',
  'INTERNAL',
  'STORE_FULL',
  'UNAVAILABLE',
]

/** The errors of routes that read a body. */
export const WITH_BODY: readonly ErrorCode[] = ['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE']

/** The answers of a route: its successes, and each error that it has a code for. */
export function answers(good: Record<number, Answer>, ...codes: ErrorCode[]): Record<number, object> {
  return answersWith(errorBody, good, ...codes)
}

/** The same for routes with another form of errors. */
export function answersWith(
  form: z.ZodType,
  good: Record<number, Answer>,
  ...codes: ErrorCode[]
): Record<number, object> {
  const described: Record<number, object> = {}
  for (const [status, [description, schema]] of Object.entries(good)) {
    described[Number(status)] = schema === undefined ? z.undefined().meta({ description }) : json(description, schema)
  }
  const byStatus = new Map<number, ErrorCode[]>()
  for (const code of [...EVERYWHERE, ...codes]) {
    const { status } = ERRORS[code]
    byStatus.set(status, [...(byStatus.get(status) ?? []), code])
  }
  for (const [status, listed] of byStatus) described[status] = refusals(form, listed)
  return described
}

export function errorAnswer(...codes: ErrorCode[]): object {
  return refusals(errorBody, codes)
}

/** Most routes have the same refusals, so these descriptions are shared. */
const shared = new WeakMap<z.ZodType, Map<string, object>>()

function refusals(form: z.ZodType, codes: readonly ErrorCode[]): object {
  const ofForm = shared.get(form) ?? new Map<string, object>()
  const found = ofForm.get(codes.join()) ?? json(sentences(codes), form)
  shared.set(form, ofForm.set(codes.join(), found))
  return found
}

export function sentences(codes: readonly ErrorCode[]): string {
  return codes.map((code) => `\`${code}\`: ${ERRORS[code].sentence}`).join('\n\n')
}

type Answer = readonly [description: string, schema?: z.ZodType]

const json = (description: string, schema: z.ZodType) => ({ description, content: { 'application/json': { schema } } })
