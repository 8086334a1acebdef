import type { IncomingMessage, ServerResponse } from 'node:http'
import { refuse } from '../answer.ts'
import type { Asked, Gate, Route } from '../gate.ts'
import type { Call } from '../key-claim.ts'
import type { Settings } from '../settings.ts'
import { type Draft, type HeldResponse, holdBack, sendAnswer } from './node-response.ts'

/** `node(req, res, route, next)`: for plain Node, Express and Fastify, as middleware or around a handler. */
export function nodeAdapter<Tx, Returned>(gate: Gate<Tx, Returned>, settings: Settings) {
  const calls = new WeakMap<IncomingMessage, Call<Tx, Returned>>()

  async function serve(req: IncomingMessage, res: ServerResponse, route: Route, next: () => unknown): Promise<void> {
    const header = headerOf(req)
    const asked = await askedBy(req, header, settings.requestMaxBytes)
    if (asked === 'broken_off') return
    if (asked === 'too_large') {
      // The unread bytes would precede the next request on this connection.
      res.setHeader('connection', 'close')
      return sendAnswer(res, refuse('PAYLOAD_TOO_LARGE'))
    }
    const admission = await gate.admit(header, asked, route)
    if (admission.kind === 'answer') return sendAnswer(res, admission.answer)
    if (admission.kind === 'keyless') {
      calls.set(req, admission.call)
      await next()
      return
    }
    const { hold } = admission
    calls.set(req, hold)
    const held = holdBack(res, settings.responseMaxBytes)
    const draft = await draftOf(held, next, settings.onError)
    const finished = await hold.finish(draft.answer)
    if (finished.send === 'other') held.replace(finished.answer)
    else if (finished.send === 'look_again') held.replace(await gate.lookAgain(hold.place))
    else if (draft.by === 'handler') held.letGo()
    else held.replace(draft.answer)
  }

  return {
    async node(req: IncomingMessage, res: ServerResponse, route: Route, next: () => unknown): Promise<void> {
      try {
        await serve(req, res, route, next)
      } catch (error) {
        settings.onError(error)
        if (!res.headersSent) sendAnswer(res, refuse('INTERNAL'))
      }
    },
    callOf(req: IncomingMessage): Call<Tx, Returned> {
      const call = calls.get(req)
      if (call === undefined)
        throw new Error('This request did not come through the node adapter of the idempotency plugin')
      return call
    },
  }
}

/** A handler may answer after it has returned, as with callbacks; a handler that throws answers with 500. */
function draftOf(held: HeldResponse, next: () => unknown, onError: (error: unknown) => void): Promise<Draft> {
  return new Promise((resolve) => {
    held.drafted.then(resolve)
    const run = async () => next()
    run().catch((error: unknown) => {
      onError(error)
      resolve({ by: 'plugin', answer: refuse('INTERNAL') })
    })
  })
}

function headerOf(req: IncomingMessage): string | undefined {
  const header = req.headers['idempotency-key']
  return Array.isArray(header) ? header.join(', ') : header
}

async function askedBy(
  req: IncomingMessage,
  header: string | undefined,
  maxBytes: number,
): Promise<Asked | 'too_large' | 'broken_off'> {
  const method = req.method ?? ''
  // Express removes the mount path from `url`; `originalUrl` has all of it.
  const target = 'originalUrl' in req && typeof req.originalUrl === 'string' ? req.originalUrl : (req.url ?? '')
  const contentType = req.headers['content-type'] ?? ''
  if (header === undefined) return { method, target, contentType, body: new Uint8Array() }
  // An earlier parser may have left its result. Some leave `{}` for a body that they did not read, so the bytes come first.
  const parsed = req.readableDidRead && 'body' in req && req.body !== undefined
  const body = parsed ? { parsed: req.body } : await peekBody(req, maxBytes)
  return typeof body === 'string' ? body : { method, target, contentType, body }
}

/** Reads the whole body and puts it back before the stream ends, so that the handler can read it again. */
async function peekBody(req: IncomingMessage, maxBytes: number): Promise<Buffer | 'too_large' | 'broken_off'> {
  if (!hasBody(req)) return Buffer.alloc(0)
  if (req.readableEnded || req.readableDidRead) {
    throw new TypeError(
      'The request body was read before the idempotency plugin could compare it; let the plugin go first, or leave it in req.body',
    )
  }
  const chunks: Buffer[] = []
  let bytes = 0
  for (;;) {
    for (let chunk: Buffer | null = req.read(); chunk !== null; chunk = req.read()) {
      chunks.push(chunk)
      bytes += chunk.length
      if (bytes > maxBytes) return 'too_large'
    }
    // In the same turn as the last read: the stream emits `end` in the next one, unless it has bytes again.
    if (isWhole(req, bytes)) break
    if (!(await moreOf(req))) return 'broken_off'
  }
  const body = Buffer.concat(chunks)
  if (body.length > 0) req.unshift(body)
  return body
}

/** RFC 9112, 6.3: without either header there is no body. */
function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || lengthOf(headers) > 0
}

const lengthOf = (headers: IncomingMessage['headers']): number => Number(headers['content-length'] ?? 0)

/** Injected requests of tests have a length, but never set `complete`. */
function isWhole(req: IncomingMessage, bytes: number): boolean {
  return req.complete || bytes === lengthOf(req.headers)
}

function moreOf(req: IncomingMessage): Promise<boolean> {
  return new Promise((resolve) => {
    const settle = (more: boolean) => () => {
      req.off('readable', onReadable).off('close', onClose).off('error', onClose)
      resolve(more)
    }
    const [onReadable, onClose] = [settle(true), settle(false)]
    req.on('readable', onReadable).on('close', onClose).on('error', onClose)
  })
}
