import { endText, type JobDetail } from '@ichido/sdk/protocol'
import type { Connection } from '../connection/connect.ts'
import { Failure } from './exit.ts'
import { oneLine } from './table.ts'
import { outJson, paint, say } from './terminal.ts'

/** Prints how a job ended: its result, or, as a failure of the command, why there is none. */
export async function showOutcome({ transport }: Connection, job: JobDetail, json: boolean): Promise<void> {
  if (job.state !== 'SUCCEEDED') {
    if (json) outJson({ ...job, result: null })
    throw withoutSuccess(job)
  }
  const { result } = await transport.result(job.job_id, 0)
  if (json) return outJson({ ...job, result })
  say(`${paint('green', 'Done')} ${secondsOf(job)} s after it was submitted`)
  outJson(result, 2)
}

export function withoutSuccess({ job_id: jobId, state, error }: JobDetail): Failure {
  return new Failure(`Job ${jobId} ${oneLine(endText(state, error))}`)
}

function secondsOf({ created_at, finished_at }: JobDetail): string {
  return ((Date.parse(finished_at ?? created_at) - Date.parse(created_at)) / 1000).toFixed(1)
}
