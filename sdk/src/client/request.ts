import { platformWorld } from '../world.ts'
import { type CallOptions, createCall, type HttpOptions } from './call.ts'
import { checkRetry, retrying } from './retry.ts'

export interface RequestOptions extends Omit<CallOptions, 'signal'> {
  signal?: AbortSignal | undefined
  /** Instead of `body`, when a later try sends something else. */
  bodyOf?: (tries: number) => Blob
  /** What its error names, for whoever makes the call again. */
  key?: string | undefined
  /** How long one try may take, unless the caller of it all has said so. */
  timeoutMs?: number
  /** It has no key, and made again it might be done twice. */
  once?: boolean
}

export type Request = (
  method: string,
  path: string,
  options?: RequestOptions,
) => Promise<{ body: unknown; response: Response }>

/** A call that is made again when it fails, by the rules of `retry.ts`, and tells the server how often it was tried. */
export function createRequest(options: HttpOptions): Request {
  checkRetry(options.retry ?? {})
  const call = createCall(options)
  const world = { ...platformWorld, ...options.world }
  return (method, path, requestOptions = {}) => {
    const { once = false, key, signal, timeoutMs, headers, body, bodyOf } = requestOptions
    const { retry = {} } = options
    const tries = once ? 1 : retry.tries
    const given = { ...retry, tries, timeoutMs: retry.timeoutMs ?? timeoutMs, key, signal }
    return retrying(world, given, (tries, either) =>
      call(method, path, {
        body: bodyOf?.(tries) ?? body,
        headers: { ...headers, 'ichido-attempt': String(tries) },
        signal: either,
      }),
    )
  }
}
