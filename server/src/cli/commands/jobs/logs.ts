import type { Page, RunLogShape } from '@ichido/sdk/protocol'
import { allPages, type Connection, connect, query } from '../../connection/connect.ts'
import { jobIdOf } from '../../connection/job-id.ts'
import { followStream } from '../../connection/stream.ts'
import { waitingText, withoutSuccess } from '../../output/follow.ts'
import { outJson, outText, paint, say } from '../../output/terminal.ts'

interface LogFlags {
  follow?: boolean
  tail?: number
  json?: boolean
}

/** Prints the log of a job, oldest first. */
export async function printLogs(given: string, { follow = false, tail, json = false }: LogFlags): Promise<void> {
  const connection = connect()
  const jobId = await jobIdOf(connection, given)
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
  yield* allPages<RunLogShape>(ask, path)
}

/** Yields the log of a job as it is written, until the job has ended. */
async function* followLog(
  connection: Connection,
  jobId: string,
  tail: number | undefined,
): AsyncGenerator<RunLogShape> {
  const path = `/v1/jobs/${encodeURIComponent(jobId)}/logs${query({ tail })}`
  for await (const { event, data } of followStream(connection, path)) {
    if (event === 'end') return
    yield data as RunLogShape
  }
}
