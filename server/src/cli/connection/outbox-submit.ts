import { type Accepted, mayRetry } from '@ichido/sdk/client'
import type { SubmitRequest } from '@ichido/sdk/protocol'
import { Failure } from '../output/exit.ts'
import { out, outJson, paint, say } from '../output/terminal.ts'
import { commandLine } from '../self.ts'
import { type Connection, Unreachable } from './connect.ts'
import { type KeptJob, KeptJobs, toShape } from './outbox-file.ts'

/**
 * Kept first, and then sent, after what was kept before it: it is one job whatever happens to this process. What the
 * server refuses is not kept: whoever asked for it sees why, and can ask again.
 */
export async function submitOrKeep(
  connection: Connection,
  request: SubmitRequest,
  { key, json }: { key?: string; json?: boolean },
): Promise<void> {
  const kept = new KeptJobs(connection)
  try {
    const item = await deliver(kept, await put(kept, request, key))
    const error = kept.errorOf(item)
    if (item.status === 'failed') {
      if (error === undefined) throw failedElsewhere(item)
      if (!(error instanceof Unreachable || mayRetry(error))) await kept.drop(item.id)
      throw error
    }
    if (item.answer !== undefined) sayRemarks(item.answer)
    else if (item.status === 'queued') sayKept(item, error)
    else say(`Another process sent the job; see \`${commandLine(`keys show ${item.key}`)}\``)
    if (json) outJson(toShape(item))
    else out(item.answer?.response.job_id ?? item.id)
  } finally {
    await kept.close()
  }
}

/** One that failed before under this key has its attempts anew. */
async function put(kept: KeptJobs, request: SubmitRequest, key: string | undefined): Promise<KeptJob> {
  const item = await kept.put(request, key === undefined ? {} : { key })
  return item.status === 'failed' ? kept.retry(item.id) : item
}

async function deliver(kept: KeptJobs, item: KeptJob): Promise<KeptJob> {
  // Of what waits for its next attempt, a new submission must spend none.
  const tried = await kept.flush({ onlyDue: true })
  const found = [...tried, ...(await kept.list())].find(({ id }) => id === item.id)
  return found ?? { ...item, status: 'sent' }
}

/** Another process tried it, and who asked that one may want it still. */
function failedElsewhere({ id, error = 'It failed' }: KeptJob): Failure {
  return new Failure(
    error,
    `Another process tried to send the job. It is kept here as item ${id}; see \`${commandLine('outbox list')}\``,
  )
}

function sayKept({ id, key, error }: KeptJob, thrown: unknown): void {
  const why = error ?? (thrown instanceof Error ? thrown.message : 'No server answers')
  say(why)
  say(`It is kept here as item ${id}, with the key ${key}. Send it with \`${commandLine('outbox flush')}\``)
}

export function sayRemarks({ response, replayed }: Accepted): void {
  for (const warning of [...response.quota_warnings, response.cost_limit_warning ?? []].flat()) {
    say(`${paint('yellow', 'warning:')} ${warning}`)
  }
  if (replayed) say('The key was used before; this is its job.')
}
