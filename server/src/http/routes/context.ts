import type { IncomingMessage, ServerResponse } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, RawServerDefault } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { decodeCursor, encodeCursor } from '../../contract/common/list.ts'
import type { Feeds } from '../../services/events/feeds.ts'
import type { Services } from '../../services/index.ts'
import type { MismatchStatus } from '../server/errors.ts'
import type { Seats } from '../streaming/stream.ts'

/** What routes need to parse, call and render. */
export interface RouteContext {
  services: Services
  mismatchStatus: MismatchStatus
  /** Where people and workers reach the server, if it was told. */
  publicUrl: string | null
  /** Aborted when the server begins to stop: whoever waits is answered at once. */
  draining: AbortSignal
  /** For answers that go on for long: each takes one. */
  seats: { logs: Seats; events: Seats; polls: Seats }
  /** Of the events of jobs. */
  feeds: Feeds
}

/** An app whose handlers know their requests' types from their schemas. */
export type ApiInstance = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>

export const jobParams = z.object({ job_id: z.uuid().toLowerCase() })

/** Ends a wait when the client has gone away or the server stops. */
export function waitSignal(reply: FastifyReply, draining: AbortSignal): AbortSignal {
  const gone = new AbortController()
  // Whoever went away while its token was looked up does not go away again.
  if (reply.raw.destroyed) gone.abort()
  else reply.raw.once('close', () => gone.abort())
  return AbortSignal.any([gone.signal, draining])
}

export function cursorIn(list: string, cursor: string | undefined, isId?: (text: string) => boolean): string | null {
  if (cursor === undefined) return null
  const id = decodeCursor(list, cursor, isId)
  if (id !== null) return id
  throw new IchidoError('INVALID_PAYLOAD', 'cursor must be the next_cursor of an earlier answer of this list', {
    field: 'cursor',
  })
}

export function cursorOut<T>(list: string, page: { data: T[]; next_cursor: string | null }): typeof page {
  const { data, next_cursor } = page
  return { data, next_cursor: next_cursor === null ? null : encodeCursor(list, next_cursor) }
}
