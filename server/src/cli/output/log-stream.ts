import { setTimeout as pause } from 'node:timers/promises'
import { type ErrorBody, IchidoError, type RunLogShape } from '@ichido/sdk/protocol'
import { type Connection, query } from '../connection/connect.ts'
import { mayPass, RETRY_MS, UNREACHABLE_MAX_MS } from './follow.ts'

/** What the runs of a job write, as they write it, until the job has ended; through restarts of the server. */
export async function* followLog(
  { open }: Connection,
  jobId: string,
  tail: number | undefined,
): AsyncGenerator<RunLogShape> {
  const path = `/v1/jobs/${encodeURIComponent(jobId)}/logs${query({ tail })}`
  let lastId: string | null = null
  for (let lastHeardMs = performance.now(); ; ) {
    try {
      const headers = { accept: 'text/event-stream', ...(lastId === null ? {} : { 'last-event-id': lastId }) }
      const response = await open(path, { headers })
      for await (const { event, id, data } of eventsOf(response)) {
        if (event === 'end') return
        if (event === 'problem') throw refusal(data as ErrorBody)
        lastId = id
        yield data as RunLogShape
      }
      lastHeardMs = performance.now()
    } catch (error) {
      if (error instanceof Interrupted) lastHeardMs = performance.now()
      else if (!mayPass(error) || performance.now() - lastHeardMs > UNREACHABLE_MAX_MS) throw error
    }
    await pause(RETRY_MS)
  }
}

/** The connection broke after the answer had begun. */
class Interrupted extends Error {}

interface StreamEvent {
  event: string
  id: string | null
  data: unknown
}

async function* eventsOf(response: Response): AsyncGenerator<StreamEvent> {
  let open = ''
  for await (const part of textsOf(response)) {
    const blocks = (open + part).split('\n\n')
    open = blocks.pop() ?? ''
    for (const block of blocks) {
      const fields = new Map(block.split('\n').map((line) => splitField(line)))
      const event = fields.get('event')
      if (event === undefined) continue
      yield { event, id: fields.get('id') ?? null, data: JSON.parse(fields.get('data') ?? 'null') }
    }
  }
}

async function* textsOf({ body }: Response): AsyncGenerator<string> {
  try {
    yield* body?.pipeThrough(new TextDecoderStream()) ?? []
  } catch (error) {
    throw new Interrupted(String(error))
  }
}

function splitField(line: string): [string, string] {
  const at = line.indexOf(': ')
  return [line.slice(0, at), line.slice(at + 2)]
}

function refusal({ error: { code, message, details } }: ErrorBody): IchidoError {
  return new IchidoError(code, message, details)
}
