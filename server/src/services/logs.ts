import { IchidoError, type Page, type RunLogShape } from '@ichido/sdk/protocol'
import type { Caller } from '../core/roles.ts'
import { runIdOf } from '../store/commands/run-facts.ts'
import { findLogs, type LogChunk, logText, storeLogs } from '../store/commands/run-logs.ts'
import { integer, text } from '../store/statement.ts'
import type { Deps } from './deps.ts'
import type { JobService } from './jobs.ts'
import { notFound } from './not-found.ts'
import { iso } from './render.ts'

export interface LogService {
  /** How many chunks were new. */
  append(workerId: string, leaseId: string, chunks: readonly LogChunk[]): Promise<number>
  /** What all runs of a job wrote, oldest first. */
  read(caller: Caller, jobId: string, limit: number, after: LogPlace | null): Promise<Page<RunLogShape>>
}

/** The number of the run and of the chunk in it, as `run_no.n`. */
export type LogPlace = string

/** Of one run; what a program writes beyond it is cut off. */
export const LOG_BYTES_MAX = 10 * 1024 * 1024

export function createLogService({ store }: Deps, jobs: JobService): LogService {
  return {
    async append(workerId, leaseId, chunks) {
      const runId = runIdOf(leaseId)
      if (runId === null) throw notFound('lease', leaseId)
      const outcome = await store.write(storeLogs({ runId, workerId, leaseId, chunks, bytesMax: LOG_BYTES_MAX }))
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      return outcome.accepted
    },

    async read(caller, jobId, limit, after) {
      await jobs.get(caller, jobId)
      const [runNo = 0, n = -1] = (after ?? '').split('.').filter(Boolean).map(Number)
      const rows = await store.read(findLogs(jobId, { runNo, n }, limit))
      const last = rows.length === limit ? rows.at(-1) : undefined
      return {
        data: rows.map((row) => ({
          run_id: text(row, 'run_id'),
          run_no: integer(row, 'run_no'),
          n: integer(row, 'n'),
          stream: text(row, 'stream') === 'stderr' ? 'stderr' : 'stdout',
          text: logText(row),
          created_at: iso(integer(row, 'created_at')),
        })),
        next_cursor: last === undefined ? null : `${integer(last, 'run_no')}.${integer(last, 'n')}`,
      }
    },
  }
}
