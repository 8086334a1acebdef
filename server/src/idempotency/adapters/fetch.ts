import { type Answer, BODY_HEADERS, encodeAnswer, REPLAYED, refuse, type StoredAnswer } from '../answer.ts'
import type { Asked, Gate, Route } from '../gate.ts'
import type { Call } from '../key-claim.ts'
import type { Settings } from '../settings.ts'

/** A handler behind `idempotency.fetch`. */
export type FetchHandler<Tx, Returned> = (call: Call<Tx, Returned>) => Response | Answer | Promise<Response | Answer>

/** `fetch(request, route, handler)`: for Hono and other frameworks that turn a Request into a Response. */
export function fetchAdapter<Tx, Returned>(gate: Gate<Tx, Returned>, settings: Settings) {
  return async (request: Request, route: Route, handler: FetchHandler<Tx, Returned>): Promise<Response> => {
    const header = request.headers.get('idempotency-key') ?? undefined
    const asked = header === undefined ? NOTHING : await askedBy(request, settings.requestMaxBytes)
    if (asked === null) return responseOf(refuse('PAYLOAD_TOO_LARGE'))
    const admission = await gate.admit(header, asked, route)
    if (admission.kind === 'answer') return responseOf(admission.answer)
    if (admission.kind === 'keyless') {
      const made = await handler(admission.call)
      return made instanceof Response ? made : responseOf(encodeAnswer(made))
    }
    const { hold } = admission
    let own: Drained
    try {
      own = await drained(await handler(hold), settings.responseMaxBytes)
    } catch (error) {
      const finished = await hold.finish(refuse('INTERNAL'))
      if (finished.send === 'own') throw error
      // A committed answer stands, even if the handler fails after it.
      return responseOf(finished.send === 'other' ? finished.answer : await gate.lookAgain(hold.place))
    }
    const finished = await hold.finish(own.answer)
    if (finished.send === 'own') return own.response
    own.response.body?.cancel()
    if (finished.send === 'look_again') return responseOf(await gate.lookAgain(hold.place))
    return responseOf(finished.answer, own.response.headers)
  }
}

/** A request without a key is not compared. */
const NOTHING: Asked = { method: '', target: '', contentType: '', body: new Uint8Array() }

async function askedBy(request: Request, maxBytes: number): Promise<Asked | null> {
  if (request.bodyUsed) {
    throw new TypeError(
      'The request body was read before the idempotency plugin could compare it; let the plugin go first',
    )
  }
  const { chunks, rest } = await readUpTo(request.clone().body, maxBytes)
  if (rest !== null) {
    // Both branches of a cloned body must be canceled together.
    await Promise.all([rest.cancel(), request.body?.cancel()])
    return null
  }
  const { pathname, search } = new URL(request.url)
  const contentType = request.headers.get('content-type') ?? ''
  return { method: request.method, target: pathname + search, contentType, body: Buffer.concat(chunks) }
}

/** The answer to store, and the response to send after that, because reading the answer consumes its body. */
type Drained = { answer: StoredAnswer; response: Response }

async function drained(made: Response | Answer, maxBytes: number): Promise<Drained> {
  if (!(made instanceof Response)) {
    const answer = encodeAnswer(made)
    return { answer, response: responseOf(answer) }
  }
  if (made.headers.get('content-type')?.startsWith('text/event-stream')) {
    await made.body?.cancel()
    const answer = refuse('IDEMPOTENCY_STREAM_REFUSED')
    return { answer, response: responseOf(answer) }
  }
  const { chunks, rest } = await readUpTo(made.body, maxBytes)
  const headers = new Headers(made.headers)
  headers.delete(REPLAYED)
  const answer = { status: made.status, headers: [...headers], body: rest === null ? Buffer.concat(chunks) : null }
  const body = rest === null ? bodyOf(answer) : resumed(chunks, rest)
  return { answer, response: new Response(body, { status: made.status, statusText: made.statusText, headers }) }
}

type Reader = ReadableStreamDefaultReader<Uint8Array>

/** `rest` reads the bytes after the chunks, if there are more than `maxBytes`. */
async function readUpTo(body: ReadableStream<Uint8Array> | null, maxBytes: number) {
  const chunks: Uint8Array[] = []
  const reader: Reader | undefined = body?.getReader()
  for (let bytes = 0; reader !== undefined; ) {
    const { done, value } = await reader.read()
    if (done) break
    chunks.push(value)
    bytes += value.length
    if (bytes > maxBytes) return { chunks, rest: reader }
  }
  return { chunks, rest: null }
}

function resumed(chunks: Uint8Array[], rest: Reader): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      const chunk = chunks.shift() ?? (await rest.read()).value
      if (chunk === undefined) controller.close()
      else controller.enqueue(chunk)
    },
    cancel: (reason) => rest.cancel(reason),
  })
}

const WITHOUT_BODY = [204, 205, 304]

function bodyOf({ status, body }: Pick<StoredAnswer, 'status' | 'body'>): Uint8Array<ArrayBuffer> | null {
  return body === null || WITHOUT_BODY.includes(status) ? null : new Uint8Array(body)
}

/** `around` has the headers of the replaced response, which middleware may have added. */
function responseOf(answer: StoredAnswer, around?: Headers): Response {
  const headers = new Headers(around)
  for (const name of [...BODY_HEADERS, REPLAYED, ...answer.headers.map(([name]) => name)]) headers.delete(name)
  for (const [name, value] of answer.headers) headers.append(name, value)
  return new Response(bodyOf(answer), { status: answer.status, headers })
}
