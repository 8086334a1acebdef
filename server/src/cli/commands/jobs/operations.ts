import { createInterface } from 'node:readline/promises'
import { IchidoError, type OperationDryRun, type OperationShape, type Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { jobIdsOf } from '../../connection/job-id.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { followProgress } from '../../output/follow.ts'
import { instant, printPage, sayOrJson, table } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { labelFilter, pastOf, seconds, states, wholeNumber } from '../../values.ts'

export interface JobFilterFlags {
  state?: string
  queue?: string
  kind?: string
  user?: string
  label?: string
  key?: string
  errorCode?: string
  text?: string
  waitingLongerThan?: number
  since?: string
  until?: string
}

export interface BulkFlags extends JobFilterFlags, JsonFlag {
  allMatching?: boolean
  dryRun?: boolean
  perSecond?: number
  wait: boolean
  yes?: boolean
}

/** Adds the flags of a filter of jobs. */
export function withJobFilter(command: Command): Command {
  return command
    .option('--state <states>', 'one or more states, such as PENDING,RUNNING', states)
    .option('--queue <name>')
    .option('--kind <name>')
    .option('--user <id>')
    .option('--label <name=value>', 'jobs with this label', labelFilter)
    .option('--key <key>', 'the job that was submitted with this key')
    .option('--error-code <code>', "the code of the latest run's error")
    .option('--text <text>', 'a text in the kind, a label, the error message or a small payload')
    .option('--waiting-longer-than <time>', 'due for longer than this, such as 10m, and no worker has it', seconds)
    .option('--since <when>', 'made at this instant or later; or how long ago, such as 2h', pastOf)
    .option('--until <when>', 'made before this instant; or how long ago', pastOf)
}

export function jobFilterOf(flags: JobFilterFlags) {
  const { state, queue, kind, user, label, key, errorCode, text, waitingLongerThan, since, until } = flags
  return {
    state,
    queue,
    kind,
    user_id: user,
    label,
    key,
    error_code: errorCode,
    text,
    waiting_longer_than_seconds: waitingLongerThan,
    created_after: since,
    created_before: until,
  }
}

/** Adds the flags of a command that changes many jobs. */
export function withBulk(command: Command): Command {
  return withJobFilter(command.option('--all-matching', 'all jobs that match the filters, instead of named jobs'))
    .option('--dry-run', 'only count, change nothing')
    .option('--per-second <n>', 'at most this many per second', wholeNumber)
    .option('--no-wait', 'do not wait for the end')
    .option('-y, --yes', 'do not ask before all that match are changed')
    .option('--json', 'print JSON')
}

const VERBS = { cancel: 'canceled', retry: 'retried', redrive: 'redriven' } as const

type BulkAction = 'cancel' | 'retry'

/** True if the flags ask for one named job and nothing else. */
export function isSingle(jobIds: readonly string[], flags: BulkFlags): boolean {
  return jobIds.length === 1 && !flags.dryRun && flags.perSecond === undefined && flags.wait && !isFiltered(flags)
}

function isFiltered(flags: BulkFlags): boolean {
  return flags.allMatching === true || Object.values(jobFilterOf(flags)).some((value) => value !== undefined)
}

/** Cancels or retries several jobs, or all that match, as an operation of the server. */
export async function changeJobs(action: BulkAction, given: readonly string[], flags: BulkFlags): Promise<void> {
  if (given.length > 0 ? isFiltered(flags) : !flags.allMatching) {
    throw new Failure('Name jobs, or use --all-matching, with or without filters.', undefined, EXIT.usage)
  }
  const connection = connect()
  const jobIds = await jobIdsOf(connection, given)
  const chosen = flags.allMatching ? { filter: jobFilterOf(flags) } : { job_ids: jobIds }
  const count = () => connection.ask<OperationDryRun>('POST', '/v1/operations', { action, ...chosen, dry_run: true })
  if (flags.dryRun) {
    const counted = await count()
    return sayOrJson(counted, flags.json, `This would ${planText(counted)}.`)
  }
  if (flags.allMatching && !flags.yes) await confirm(await count())
  const pace = flags.perSecond === undefined ? {} : { per_second: flags.perSecond }
  const begun = await connection.ask<OperationShape>('POST', '/v1/operations', { action, ...chosen, ...pace })
  if (!flags.wait) {
    if (flags.json) return outJson(begun)
    out(begun.operation_id)
    return say(`See it with ${commandLine(`jobs progress ${begun.operation_id}`)}`)
  }
  const ended = await followOperation(connection, begun.operation_id)
  finish(ended, flags.json)
  const named = [...new Set(jobIds)]
  if (ended.done < named.length) await explainMissed(connection, action, named, ended.done)
}

/** More jobs than this are not shown. */
const EXPLAINED_MAX = 20
const CHANGES = { cancel: 'jobs that have not ended', retry: 'jobs that ended without success' } as const

/** The states of the jobs tell why fewer were changed than were named. A job that was canceled before needs no cancel. */
async function explainMissed(
  { transport }: Connection,
  action: BulkAction,
  jobIds: readonly string[],
  done: number,
): Promise<void> {
  const found: { jobId: string; state: string }[] = []
  for (const jobId of jobIds) {
    const job = await transport.get(jobId).catch(orMissing)
    const isCanceled = action === 'cancel' && (job?.state === 'CANCELED' || job?.cancel_requested_at != null)
    if (!isCanceled) found.push({ jobId, state: job?.state ?? 'not found' })
  }
  if (found.length === 0) return say('The others were canceled before.')
  const missed = action === 'cancel' ? found.length : jobIds.length - done
  const shown = table(found.slice(0, EXPLAINED_MAX), { JOB: ({ jobId }) => jobId, STATE: ({ state }) => state })
  const message = `${missed} of these jobs could not be ${VERBS[action]}. A ${action} changes only ${CHANGES[action]}.`
  throw new Failure(message, `Their states now:\n${shown}`)
}

function orMissing(error: unknown): null {
  if (error instanceof IchidoError && error.code === 'NOT_FOUND') return null
  throw error
}

/** "cancel 4 jobs, 2 of them RUNNING". */
function planText({ action, matched, capped, by_state }: OperationDryRun): string {
  const running = by_state.RUNNING?.count ?? 0
  const jobs = `${capped ? 'at least ' : ''}${matched} ${matched === 1 ? 'job' : 'jobs'}`
  return `${action} ${jobs}${running > 0 ? `, ${running} of them RUNNING` : ''}`
}

/** Asks the person at the terminal. Without one, the flag --yes has to say it. */
async function confirm(counted: OperationDryRun): Promise<void> {
  const what = planText(counted)
  if (!process.stdin.isTTY || !process.stderr.isTTY) {
    throw new Failure(`This would ${what}. Add --yes to do it, or --dry-run to only count.`, undefined, EXIT.usage)
  }
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const answer = await terminal.question(`This will ${what}. Continue? [y/N] `)
    if (!/^y(es)?$/i.test(answer.trim())) throw new Failure('Nothing was changed.')
  } finally {
    terminal.close()
  }
}

function finish(operation: OperationShape, json: boolean | undefined): void {
  const { operation_id, state } = operation
  sayOrJson(operation, json, `Operation ${operation_id} is ${state}: ${progressText(operation)}`)
}

function progressText({ action, matched, done, waiting, skipped, refused }: OperationShape): string {
  const parts = [`${done} of ${matched} ${VERBS[action]}`]
  if (waiting > 0) parts.push(`${waiting} wait for a quota`)
  if (skipped > 0) parts.push(`${skipped} skipped`)
  if (refused > 0) parts.push(`${refused} refused by a quota`)
  return parts.join(', ')
}

/** Shows the progress of an operation until it has ended; Ctrl-C leaves it running. */
function followOperation(connection: Connection, operationId: string): Promise<OperationShape> {
  const lines = [`  ${commandLine(`jobs progress ${operationId}`)}`, `  ${commandLine(`jobs abort ${operationId}`)}`]
  return followProgress({
    look: () => connection.ask<OperationShape>('GET', `/v1/operations/${encodeURIComponent(operationId)}`),
    hasEnded: ({ state }) => state !== 'running',
    text: progressText,
    continues: {
      message: `Operation ${operationId} continues without this command.`,
      advice: ['See it with', lines[0], 'or end it with', lines[1]].join('\n'),
    },
  })
}

/** Adds the commands that show and abort operations. */
export function addOperations(jobs: Command): void {
  paged(jobs.command('operations').description('list cancels, retries and redrives of many jobs, newest first')).action(
    async ({ limit, cursor, json }: ListFlags) => {
      const page = await connect().ask<Page<OperationShape>>('GET', `/v1/operations${query({ limit, cursor })}`)
      printPage(page, json, 'No operations.', {
        OPERATION: (operation) => operation.operation_id,
        ACTION: (operation) => operation.action,
        STATE: (operation) => operation.state,
        BY: (operation) => operation.created_by,
        BEGAN: (operation) => instant(operation.created_at),
        ENDED: (operation) => instant(operation.ended_at),
        PROGRESS: progressText,
      })
    },
  )
  jobs
    .command('progress <operation-id>')
    .description('show the progress of an operation until it is done; Ctrl-C leaves it running')
    .option('--json', 'print JSON')
    .action(async (operationId: string, { json }: JsonFlag) => {
      finish(await followOperation(connect(), operationId), json)
    })
  jobs
    .command('abort <operation-id>')
    .description('abort an operation; jobs that were already changed stay so')
    .option('--json', 'print JSON')
    .action(async (operationId: string, { json }: JsonFlag) => {
      const path = `/v1/operations/${encodeURIComponent(operationId)}/abort`
      finish(await connect().ask<OperationShape>('POST', path), json)
    })
}
