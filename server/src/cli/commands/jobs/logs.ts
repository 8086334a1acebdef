import { setTimeout as pause } from 'node:timers/promises'
import { type ErrorBody, IchidoError, type Page, type RunLogShape } from '@ichido/sdk/protocol'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { mayPass, RETRY_MS, UNREACHABLE_MAX_MS, waitingText, withoutSuccess } from '../../output/follow.ts'
import { outJson, outText, paint, say } from '../../output/terminal.ts'

interface LogFlags {
  follow?: boolean
  tail?: number
  json?: boolean
}

const PAGE = 200

/** Prints the log of a job, oldest first. */
export async function printLogs(jobId: string, { follow = false, tail, json = false }: LogFlags): Promise<void> {
  const connection = connect()
  if (follow) {
    const { waiting_for: waiting } = await connection.transport.get(jobId)
    if (waiting !== null) say(paint('yellow', waitingText(waiting)))
  }
  const chunks = follow ? followLog(connection, jobId, tail) : readLog(connection, jobId, tail)
  const data: RunLogShape[] = []
  let runNo: number | null = null
  for await (const chunk of chunks) {
    if (json && follow) outJson(chunk)
    else if (json) data.push(chunk)
    else {
      if (chunk.run_no !== runNo) say(paint('bold', `run ${chunk.run_no}:`))
      outText(chunk.text)
    }
    runNo = chunk.run_no
  }
  if (json && !follow) outJson({ data })
  else if (!json && runNo === null) say('The log of the job is empty.')
  if (!follow) return
  const job = await connection.transport.get(jobId)
  if (job.state !== 'SUCCEEDED') throw withoutSuccess(job)
}

async function* readLog({ ask }: Connection, jobId: string, tail: number | undefined): AsyncGenerator<RunLogShape> {
  const path = `/v1/jobs/${encodeURIComponent(jobId)}/logs`
  if (tail !== undefined) return yield* (await ask<Page<RunLogShape>>('GET', `${path}${query({ tail })}`)).data
  let cursor: string | undefined
  do {
    const page: Page<RunLogShape> = await ask('GET', `${path}${query({ limit: PAGE, cursor })}`)
    yield* page.data
    cursor = page.next_cursor ?? undefined
  } while (cursor !== undefined)
}

/** Yields the log of a job as it is written, until the job has ended; survives restarts of the server. */
async function* followLog({ open }: Connection, jobId: string, tail: number | undefined): AsyncGenerator<RunLogShape> {
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
