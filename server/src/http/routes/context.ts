import type { IncomingMessage, ServerResponse } from 'node:http'
import { IchidoError, type Page } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { decodeCursor, encodeCursor, uuid } from '../../contract/common.ts'
import type { Feeds } from '../../services/events/feeds.ts'
import type { Services } from '../../services/index.ts'
import type { MismatchStatus } from '../server/errors.ts'
import type { Seats } from '../server/streams.ts'

export interface RouteContext {
  services: Services
  mismatchStatus: MismatchStatus
  /** The URL of the server for people and workers, if it is configured. */
  publicUrl: string | null
  world: World
  /** Aborted when the server begins to stop: waiting calls are then answered at once. */
  draining: AbortSignal
  /** Each long answer takes a seat. */
  seats: { logs: Seats; events: Seats; polls: Seats }
  feeds: Feeds
}

/** An app whose handlers get the types of their requests from the schemas. */
export type ApiInstance = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>

export const jobParams = z.object({ job_id: uuid })

/**
 * Answers with a page of a list, and refuses a cursor of another list. @param isPlace checks the place in the cursor;
 * the default is an id.
 */
export async function listPage<T>(
  list: string,
  { limit, cursor }: { limit: number; cursor?: string | undefined },
  read: (limit: number, after: string | null) => Promise<Page<T>>,
  isPlace?: (text: string) => boolean,
): Promise<Page<T>> {
  const after = cursor === undefined ? null : decodeCursor(list, cursor, isPlace)
  if (cursor !== undefined && after === null) {
    const message = 'cursor must be the next_cursor of an earlier answer of this list'
    throw new IchidoError('INVALID_PAYLOAD', message, { field: 'cursor' })
  }
  const { data, next_cursor } = await read(limit, after)
  return { data, next_cursor: next_cursor === null ? null : encodeCursor(list, next_cursor) }
}
