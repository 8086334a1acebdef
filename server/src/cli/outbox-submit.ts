import { type Accepted, InvalidValue } from '@ichido/sdk/client'
import type { SubmitRequest } from '@ichido/sdk/protocol'
import { realWorld } from '../world.ts'
import type { Connection } from './connect.ts'
import { EXIT, Failure } from './exit.ts'
import { type KeptJob, KeptJobs, toShape } from './outbox-file.ts'
import { commandLine } from './self.ts'
import { out, outJson, paint, say } from './terminal.ts'

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
    const item = await deliver(kept, await put(kept, fixed(request), key))
    if (item.status === 'failed') {
      await kept.drop(item.id)
      throw kept.errorOf(item) ?? new Failure(item.error ?? 'It was refused')
    }
    if (item.answer !== undefined) sayRemarks(item.answer)
    if (json) return outJson(toShape(item))
    if (item.answer !== undefined) return out(item.answer.response.job_id)
    out(item.id)
    if (item.status === 'sent') say(`Another process sent it; see \`${commandLine(`keys show ${item.key}`)}\``)
    else sayKept(item, kept.errorOf(item))
  } finally {
    await kept.close()
  }
}

/** When it is to run is meant from now on, not from when it arrives. */
function fixed({ delay_seconds, ...request }: SubmitRequest): SubmitRequest {
  if (delay_seconds === undefined) return request
  return { ...request, run_at: new Date(realWorld.now() + delay_seconds * 1000).toISOString() }
}

async function put(kept: KeptJobs, request: SubmitRequest, key: string | undefined): Promise<KeptJob> {
  return kept.put(request, key === undefined ? {} : { key }).catch((error: unknown) => {
    throw error instanceof InvalidValue ? new Failure(error.message, undefined, EXIT.usage) : error
  })
}

async function deliver(kept: KeptJobs, item: KeptJob): Promise<KeptJob> {
  const tried = await kept.flush()
  const found = [...tried, ...(await kept.list())].find(({ id }) => id === item.id)
  return found ?? { ...item, status: 'sent' }
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
  if (replayed) say('The key was used before; this is the job it stands for.')
}
