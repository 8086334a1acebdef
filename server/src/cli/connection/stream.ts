import { setTimeout as pause } from 'node:timers/promises'
import { type ErrorBody, IchidoError } from '@ichido/sdk/protocol'
import { mayPass, RETRY_MS, UNREACHABLE_MAX_MS } from '../output/follow.ts'
import type { Connection } from './connect.ts'

export interface StreamEvent {
  event: string
  id: string | null
  data: unknown
}

/** Yields the events of a stream that have data. It never ends by itself, and survives restarts of the server. */
export async function* followStream({ open }: Pick<Connection, 'open'>, path: string): AsyncGenerator<StreamEvent> {
  let lastId: string | null = null
  for (let lastHeardMs = performance.now(); ; ) {
    try {
      const headers = { accept: 'text/event-stream', ...(lastId === null ? {} : { 'last-event-id': lastId }) }
      const response = await open(path, { headers })
      for await (const event of eventsOf(response)) {
        if (event.event === 'problem') throw refusal(event.data as ErrorBody)
        lastId = event.id ?? lastId
        if (event.data !== undefined) yield event
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

async function* eventsOf(response: Response): AsyncGenerator<StreamEvent> {
  let open = ''
  for await (const part of textsOf(response)) {
    const blocks = (open + part).split('\n\n')
    open = blocks.pop() ?? ''
    for (const block of blocks) {
      const fields = new Map(block.split('\n').map((line) => splitField(line)))
      const data = fields.get('data')
      yield {
        event: fields.get('event') ?? 'message',
        id: fields.get('id') ?? null,
        data: data === undefined ? undefined : JSON.parse(data),
      }
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
