import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Gate, Route } from '../gate.ts'
import type { Call } from '../key-claim.ts'
import { refuse } from '../refusal.ts'
import type { Asked } from '../request.ts'
import type { Settings } from '../settings.ts'
import { peekBody } from './node-body.ts'
import { type Draft, type HeldResponse, holdBack, sendAnswer } from './node-response.ts'

/** `node(req, res, route, next)`: for plain Node, Express and Fastify, as a middleware or around a handler. */
export function nodeAdapter<Tx, Returned>(gate: Gate<Tx, Returned>, settings: Settings) {
  const calls = new WeakMap<IncomingMessage, Call<Tx, Returned>>()

  async function serve(req: IncomingMessage, res: ServerResponse, route: Route, next: () => unknown): Promise<void> {
    const header = headerOf(req)
    const asked = await askedBy(req, header, settings.requestMaxBytes)
    if (asked === 'broken_off') return
    if (asked === 'too_large') {
      // What was not read stands in the way of the next request on this connection.
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

/** A handler may answer after it returned, as with callbacks; one that throws has answered with a 500. */
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
  // Express cuts the mount path off `url`, and keeps the whole in `originalUrl`.
  const target = 'originalUrl' in req && typeof req.originalUrl === 'string' ? req.originalUrl : (req.url ?? '')
  const contentType = req.headers['content-type'] ?? ''
  if (header === undefined) return { method, target, contentType, body: new Uint8Array() }
  // A parser that came first may have left its result. Some leave `{}` for what they did not read: the bytes come first.
  const parsed = req.readableDidRead && 'body' in req && req.body !== undefined
  const body = parsed ? { parsed: req.body } : await peekBody(req, maxBytes)
  return typeof body === 'string' ? body : { method, target, contentType, body }
}
