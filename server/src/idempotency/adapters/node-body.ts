import type { IncomingMessage } from 'node:http'

/**
 * The whole body of a request, which then still is to be read by whoever comes after: it is put back before its end was
 * told.
 */
export async function peekBody(req: IncomingMessage, maxBytes: number): Promise<Buffer | 'too_large' | 'broken_off'> {
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
    // In the same turn as the read that found the end: the stream tells it in the next one, and then only if it is empty.
    if (isWhole(req, bytes)) break
    if (!(await moreOf(req))) return 'broken_off'
  }
  const body = Buffer.concat(chunks)
  if (body.length > 0) req.unshift(body)
  return body
}

/** RFC 9112, 6.3: without either header there is none. */
function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || lengthOf(headers) > 0
}

const lengthOf = (headers: IncomingMessage['headers']): number => Number(headers['content-length'] ?? 0)

/** Requests that tests inject have a length, but nobody who sets `complete`. */
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
