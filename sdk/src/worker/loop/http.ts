import { type CallOptions, createCall } from '../../client/call.ts'
import { innermost } from '../../client/errors.ts'
import { ERRORS, type ErrorCode, IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type { World } from '../../world.ts'
import type { Beat, LeaseCall, RunReport, WorkerTransport } from './ports.ts'

export interface WorkerHttpOptions {
  url: string
  /** Called for each request, because the token is renewed from time to time. */
  token: () => string
  world: World
  fetch?: typeof fetch
  /** Called after each successful call. */
  onAnswer?: () => void
  /** Called when a poll is told that the control plane drains this worker. */
  onDraining?: () => void
}

/** The control plane over HTTP. */
export interface RemoteTransport extends WorkerTransport {
  /** Tells the control plane that this worker stops. */
  detach(): Promise<void>
}

/** The timeout of a call. */
const CALL_TIMEOUT_MS = 30_000
/** Short, because the next heartbeat follows soon. */
const BEAT_TIMEOUT_MS = 10_000
/** Added to the time that a poll waits at the control plane. */
const POLL_MARGIN_MS = 10_000
/** Short, because it delays the shutdown. */
const DETACH_TIMEOUT_MS = 2_000

type WorkerCall = (path: string, body: unknown, timeoutMs: number, signal?: AbortSignal) => Promise<unknown>

export function httpWorkerTransport(options: WorkerHttpOptions): RemoteTransport {
  const call = createWorkerCall(options)
  const post = (path: string, body: unknown) => call(path, body, CALL_TIMEOUT_MS)
  return {
    async lease(request, signal) {
      const timeoutMs = request.waitMs + POLL_MARGIN_MS
      const answer = (await call('/v1/leases', leaseBody(request), timeoutMs, signal)) as {
        leases: LeaseShape[]
        draining?: boolean
      } | null
      if (answer?.draining) options.onDraining?.()
      return answer?.leases ?? []
    },
    async start(leaseId, startId) {
      return (await post(pathOf(leaseId, 'start'), { start_id: startId })) as { repeated: boolean }
    },
    async heartbeat(leaseIds) {
      const answer = await call('/v1/leases/heartbeat', { lease_ids: leaseIds }, BEAT_TIMEOUT_MS).catch(whenRevoked)
      if (answer === null) return leaseIds.map(() => LOST)
      const { data } = answer as { data: { held: boolean; cancel_requested: boolean }[] }
      return data.map((beat) => ({ held: beat.held, cancelRequested: beat.cancel_requested }))
    },
    async cancels(known, waitMs, signal) {
      const body = { known, wait_seconds: waitMs / 1000 }
      const answer = await call('/v1/leases/cancels', body, waitMs + POLL_MARGIN_MS, signal)
      return (answer as { lease_ids: string[] }).lease_ids
    },
    async publish(leaseId, events) {
      await post(pathOf(leaseId, 'events'), { events })
    },
    async log(leaseId, chunks) {
      await post(pathOf(leaseId, 'logs'), { chunks })
    },
    async report(reports, next) {
      const body = { reports: reports.map(reportBody), ...(next === null ? {} : { next: leaseBody(next) }) }
      const answer = (await post('/v1/leases/report', body)) as {
        data: { status: number; error?: { code: string; message: string; details: Record<string, unknown> } }[]
        leases?: LeaseShape[]
      }
      const refusals = answer.data.map(({ status, error }) => (error === undefined ? null : refusal(status, error)))
      return { refusals, leases: answer.leases ?? [] }
    },
    async release(leaseId) {
      await post(pathOf(leaseId, 'release'), {})
    },
    async detach() {
      await call('/v1/workers/detach', {}, DETACH_TIMEOUT_MS)
    },
  }
}

const LOST: Beat = { held: false, cancelRequested: false }

/** A revoked worker holds no leases. */
function whenRevoked(error: unknown): null {
  if (error instanceof IchidoError && error.code === 'FORBIDDEN') return null
  throw error
}

/** A request with a timeout. Temporary failures are thrown as UNAVAILABLE. */
export function createWorkerCall({ url, token, world, fetch: send = fetch, onAnswer }: WorkerHttpOptions): WorkerCall {
  return async (path, body, timeoutMs, signal) => {
    const late = new AbortController()
    const callOff = world.after(timeoutMs, () => late.abort())
    const options: CallOptions = { body, signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal }
    const call = createCall({ url, token: token(), fetch: reaching(send, signal, late.signal) })
    try {
      const { body: answer } = await call('POST', path, options)
      onAnswer?.()
      return answer
    } catch (error) {
      if (error instanceof IchidoError || signal?.aborted) throw error
      throw outage(error, late.signal)
    } finally {
      callOff()
    }
  }
}

/** Distinguishes the answers of a proxy from those of the control plane. */
function reaching(send: typeof fetch, signal: AbortSignal | undefined, late: AbortSignal): typeof fetch {
  return async (input, init) => {
    let response: Response
    try {
      response = await send(input, init)
    } catch (error) {
      throw signal?.aborted ? error : outage(error, late)
    }
    const passing = response.status >= 500 || response.status === 408 || response.status === 429
    if (!passing || response.headers.get('x-request-id') !== null) return response
    await response.body?.cancel()
    const cut = response.status === 502 || response.status === 504
    throw new IchidoError('UNAVAILABLE', `A proxy in front of the control plane answered ${response.status}`, { cut })
  }
}

function outage(error: unknown, late: AbortSignal): IchidoError {
  if (late.aborted) return new IchidoError('UNAVAILABLE', 'The control plane did not answer in time', { cut: true })
  const why = innermost(error)
  const advice = certificateAdvice(why)
  if (advice !== null) {
    const words = `The certificate of the control plane is not trusted: ${why}. ${advice}`
    return new IchidoError('UNAVAILABLE', words, { untrusted: true })
  }
  const cut = /closed|terminated|ECONNRESET|EPIPE|socket hang up/i.test(why)
  return new IchidoError('UNAVAILABLE', `The control plane cannot be reached: ${why}`, { cut })
}

/** Advice for a server whose certificate is not trusted; null for another error. */
export function certificateAdvice(why: string): string | null {
  const isCertificate = /certificate|self.signed|CERT_/i.test(why)
  return isCertificate ? 'Set NODE_EXTRA_CA_CERTS to the file of the authority that signed it.' : null
}

function refusal(status: number, { code, message, details }: { code: string; message: string; details: object }) {
  if (Object.hasOwn(ERRORS, code)) return new IchidoError(code as ErrorCode, message, { ...details })
  return new IchidoError(status >= 500 ? 'UNAVAILABLE' : 'INVALID_PAYLOAD', `${code}: ${message}`)
}

function pathOf(leaseId: string, verb: string): string {
  return `/v1/leases/${encodeURIComponent(leaseId)}/${verb}`
}

function leaseBody({ queues, kinds, max, waitMs, pollId, startId }: LeaseCall) {
  const start = startId === undefined ? {} : { start: true, start_id: startId }
  return { queues, kinds, max, wait_seconds: waitMs / 1000, poll_id: pollId, ...start }
}

function reportBody(report: RunReport) {
  const { leaseId } = report
  if ('result' in report) return { lease_id: leaseId, ...report.result }
  const { code, message, traceback, retryable } = report.failure
  return { lease_id: leaseId, error_code: code, error_message: message, traceback, retryable }
}
