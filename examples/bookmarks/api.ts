import type { IncomingMessage, ServerResponse } from 'node:http'
import type { DatabaseSync } from 'node:sqlite'
import { text } from 'node:stream/consumers'
import { IchidoError } from 'ichido'
import { createIdempotency, sqliteKeys } from 'ichido/idempotency'
import type { BookmarkRow, BookmarkTable } from './bookmark-table.ts'
import type { Changes } from './changes.ts'
import type { FailedJobTable } from './failed-job-table.ts'
import type { Processing } from './processing.ts'
import { parseList, parseSave } from './requests.ts'
import { sendError, sendJson } from './send.ts'
import { bookmarkShape, failedJobShape } from './shapes.ts'

const BODY_MAX_BYTES = 16 * 1024
const ONE = /^\/v1\/bookmarks\/([\w-]+)(\/reprocess)?$/

export interface ApiDeps {
  database: DatabaseSync
  bookmarks: BookmarkTable
  failedJobs: FailedJobTable
  processing: Processing
  changes: Changes
  changed(bookmarkId: string): void
  userOf(request: IncomingMessage): string
  onTrouble(error: unknown): void
}

/** `/v1`: parses requests, calls the tables, renders answers. */
export class Api {
  readonly #deps: ApiDeps
  readonly #idempotency

  constructor(deps: ApiDeps) {
    this.#deps = deps
    const { database, onTrouble } = deps
    const keys = sqliteKeys(database)
    this.#idempotency = createIdempotency({ keys, requestMaxBytes: BODY_MAX_BYTES, onError: onTrouble })
  }

  async answer(
    method: string,
    path: string,
    query: URLSearchParams,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const { userOf, changes } = this.#deps
    const user = userOf(request)
    const [, id, action] = ONE.exec(path) ?? []
    switch (`${method} ${path}`) {
      case 'GET /v1/bookmarks':
        return sendJson(response, 200, this.#list(user, query))
      case 'POST /v1/bookmarks':
        return this.#save(user, request, response)
      case 'GET /v1/bookmarks/events':
        return changes.add(user, response)
      case 'GET /v1/failed-jobs':
        return sendJson(response, 200, this.#listFailed(user, query))
    }
    if (method === 'GET' && id !== undefined && action === undefined) {
      return sendJson(response, 200, bookmarkShape(this.#find(user, id)))
    }
    if (method === 'POST' && id !== undefined && action !== undefined) {
      return sendJson(response, 202, bookmarkShape(await this.#reprocess(this.#find(user, id))))
    }
    throw new IchidoError('NOT_FOUND')
  }

  /** Writes the bookmark and the answer under its key in one transaction, so an interrupted request has no effect. */
  async #save(user: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { bookmarks, processing, changed } = this.#deps
    const route = { route: 'POST /v1/bookmarks', user, recover: () => 'run' as const }
    await this.#idempotency.node(request, response, route, async () => {
      const call = this.#idempotency.callOf(request)
      try {
        const save = parseSave(await bodyOf(request))
        let saved = ''
        const { status, body } = await call.withKey(() => {
          const { made, bookmark } = bookmarks.save({
            userId: user,
            url: save.url,
            normalUrl: save.normalUrl,
            sourceHint: save.source_hint ?? null,
            createdFrom: save.created_from,
            key: call.key ?? '',
            nowMs: Date.now(),
          })
          saved = bookmark.id
          return { status: made ? 201 : 200, body: bookmarkShape(bookmark) }
        })
        sendJson(response, status, body)
        changed(saved)
        void processing.submitMissing()
      } catch (error) {
        if (!(error instanceof IchidoError)) throw error
        sendError(response, error)
      }
    })
  }

  #list(user: string, query: URLSearchParams) {
    const { limit, cursor } = parseList(query)
    return page(this.#deps.bookmarks.list(user, limit, cursor), limit, bookmarkShape)
  }

  #listFailed(user: string, query: URLSearchParams) {
    const { limit, cursor } = parseList(query)
    return page(this.#deps.failedJobs.list(user, limit, cursor), limit, failedJobShape)
  }

  #find(user: string, id: string): BookmarkRow {
    const bookmark = this.#deps.bookmarks.find(id)
    if (bookmark === null || bookmark.user_id !== user) throw new IchidoError('NOT_FOUND', `There is no bookmark ${id}`)
    return bookmark
  }

  /** Restarts a bookmark that has ended. A bookmark in processing is returned unchanged, with its job. */
  async #reprocess(bookmark: BookmarkRow): Promise<BookmarkRow> {
    const { bookmarks, processing, changed } = this.#deps
    if (bookmarks.begin(bookmark)) {
      await processing.submitMissing()
      changed(bookmark.id)
    }
    return bookmarks.find(bookmark.id) ?? bookmark
  }
}

function page<Row extends { n: number }, Shape>(rows: Row[], limit: number, shape: (row: Row) => Shape) {
  const last = rows.at(-1)
  return { data: rows.map(shape), next_cursor: rows.length === limit && last !== undefined ? String(last.n) : null }
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  if (!request.headers['content-type']?.startsWith('application/json')) throw new IchidoError('UNSUPPORTED_MEDIA_TYPE')
  try {
    return JSON.parse(await text(request))
  } catch {
    throw new IchidoError('INVALID_PAYLOAD', 'The body is not JSON', { field: 'body' })
  }
}
