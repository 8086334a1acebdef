import {
  type CallbackShape,
  IchidoError,
  type JobDetail,
  type JobShape,
  type Page,
  type ResultShape,
  reasonText,
  type WorkerShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { jobIdOf } from '../../connection/job-id.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { follow, showOutcome, waitingText } from '../../output/follow.ts'
import { type Columns, facts, instant, printPage, table } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { payload, seconds, wholeNumber } from '../../values.ts'
import { printArtifacts } from './artifacts.ts'
import { printLogs } from './logs.ts'
import {
  addOperations,
  type BulkFlags,
  changeJobs,
  isSingle,
  type JobFilterFlags,
  jobFilterOf,
  withBulk,
  withJobFilter,
} from './operations.ts'
import { watchList } from './watch-list.ts'

const RESULT_MAX = 500
const NAMES_MAX = 10
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

interface JobListFlags extends JobFilterFlags, ListFlags {
  watch?: boolean
}

interface WatchFlags {
  timeout?: number
  json?: boolean
}

export function addJobs(program: Command): void {
  const jobs = program
    .command('jobs')
    .description('list, show, cancel and retry jobs, read their logs and fetch their files')
  paged(
    withJobFilter(jobs.command('list').description('list jobs, newest first')).option(
      '-w, --watch',
      'keep the list up to date until Ctrl-C; a pipe gets each job that is new or has changed',
    ),
  ).action(list)
  jobs
    .command('show <job-id>')
    .description('show a job with its runs')
    .option('--json', 'print JSON')
    .action(async (given: string, { json }: JsonFlag) => {
      const connection = connect()
      const job = await connection.transport.get(await jobIdOf(connection, given))
      if (json) outJson(job)
      else await show(job)
    })
  jobs
    .command('logs <job-id>')
    .description('print the log of a job')
    .option('-f, --follow', 'print new lines until the job has ended')
    .option('--tail <n>', 'begin with this many last lines', wholeNumber)
    .option('--json', 'print JSON; with --follow, one line of JSON for each chunk')
    .action(printLogs)
  jobs
    .command('artifacts <job-id>')
    .description('list the files that a job waits for, was given and has made')
    .option('--save <folder>', 'download the files into this folder, and check the SHA-256 of each')
    .option('--json', 'print JSON')
    .action(printArtifacts)
  withBulk(
    jobs
      .command('cancel [job-id...]')
      .description('cancel jobs; running jobs are asked to stop; Ctrl-C leaves a cancel of many running'),
  ).action(cancel)
  withBulk(
    jobs
      .command('retry [job-id...]')
      .description('retry jobs that ended without success, each with a full retry budget')
      .option('-p, --payload <json>', 'submit a new job with this payload in its place: JSON, @file, or -', payload),
  ).action(retry)
  addOperations(jobs)
}

export function addWatch(program: Command): void {
  program
    .command('watch <job-id>')
    .description('follow a job until it has ended, and print its result')
    .option('--timeout <time>', 'stop watching after this long, such as 10m', seconds)
    .option('--json', 'print each event, and finally the job, as a line of JSON')
    .action(async (given: string, { timeout, json = false }: WatchFlags) => {
      const connection = connect()
      const jobId = await jobIdOf(connection, given)
      const onEvent = json ? { onEvent: outJson } : {}
      const job = await follow(connection, jobId, { timeoutSeconds: timeout, ...onEvent })
      await showOutcome(connection, job, json)
    })
}

async function cancel(jobIds: string[], flags: BulkFlags): Promise<void> {
  if (!isSingle(jobIds, flags)) return changeJobs('cancel', jobIds, flags)
  const connection = connect()
  const jobId = await jobIdOf(connection, jobIds[0] ?? '')
  const job = await connection.transport.cancel(jobId)
  if (flags.json) outJson(job)
  else if (job.state === 'CANCELED') say(`Job ${jobId} is canceled.`)
  else say(`Job ${jobId} is ${job.state} and was asked to stop. Follow it with ${commandLine(`watch ${jobId}`)}`)
}

async function retry(jobIds: string[], { payload, ...flags }: BulkFlags & { payload?: unknown }): Promise<void> {
  if (!isSingle(jobIds, flags)) {
    if (payload === undefined) return changeJobs('retry', jobIds, flags)
    throw new Failure('--payload takes one job, and no filters.', undefined, EXIT.usage)
  }
  const connection = connect()
  const jobId = await jobIdOf(connection, jobIds[0] ?? '')
  const body = payload === undefined ? {} : { payload }
  const job = await connection.ask<JobDetail>('POST', `/v1/jobs/${encodeURIComponent(jobId)}/retry`, body)
  if (flags.json) outJson(job)
  else if (job.job_id === jobId) say(`Job ${jobId} is ${job.state} again.`)
  else out(job.job_id)
}

async function list({ json, limit, cursor, watch = false, ...flags }: JobListFlags): Promise<void> {
  const filter = query({ ...jobFilterOf(flags), limit, cursor })
  const read = () => connect().ask<Page<JobShape>>('GET', `/v1/jobs${filter}`)
  const columns: Columns<JobShape> = {
    JOB: (job) => job.job_id,
    STATE: (job) => job.state,
    KIND: (job) => job.kind,
    QUEUE: (job) => job.queue,
    USER: (job) => job.user_id,
    ATTEMPT: (job) => job.attempt,
    CREATED: (job) => instant(job.created_at),
  }
  if (watch) await watchList(read, columns, json)
  else printPage(await read(), json, 'No jobs.', columns)
}

/** The result in one line, cut to a readable length. */
function callbackText({ url, delivery }: CallbackShape): string {
  if (delivery === null) return url
  const { state, attempts, last_error } = delivery
  const tries = attempts === 1 ? '1 try' : `${attempts} tries`
  return `${url} (${[`${state} after ${tries}`, last_error].filter(Boolean).join(': ')})`
}

async function resultText({ job_id: jobId, state }: JobDetail): Promise<string | null> {
  if (state !== 'SUCCEEDED') return null
  const { result } = await connect().ask<ResultShape>('GET', `/v1/jobs/${jobId}/result`)
  const text = JSON.stringify(result)
  return text.length > RESULT_MAX ? `${text.slice(0, RESULT_MAX)}… (${text.length} characters)` : text
}

/** The names of enrolled workers, as far as the caller may see them. */
async function workerNames({ runs }: JobDetail): Promise<Map<string, string>> {
  const ids = new Set(runs.flatMap(({ assigned_worker_id: id }) => (id !== null && UUID.test(id) ? [id] : [])))
  const found = [...ids].slice(-NAMES_MAX).map(async (id): Promise<[string, string][]> => {
    try {
      return [[id, (await connect().ask<WorkerShape>('GET', `/v1/workers/${id}`)).name]]
    } catch (error) {
      if (error instanceof IchidoError && ['FORBIDDEN', 'NOT_FOUND'].includes(error.code)) return []
      throw error
    }
  })
  return new Map((await Promise.all(found)).flat())
}

async function show(job: JobDetail): Promise<void> {
  const [result, names] = await Promise.all([resultText(job), workerNames(job)])
  const worker = (id: string) => (names.has(id) ? `${names.get(id)} (${id})` : id)
  const labels = Object.entries(job.labels).map(([name, value]) => `${name}=${value}`)
  out(
    facts([
      ['job', job.job_id],
      ['state', job.state],
      ['kind', job.kind],
      ['queue', job.queue],
      ['definition', job.definition],
      ['tick', job.scheduled_for && instant(job.scheduled_for)],
      ['user', job.user_id],
      ['key', job.idempotency_key],
      ['labels', labels.length === 0 ? null : labels.join(', ')],
      ['priority', String(job.priority)],
      ['created', instant(job.created_at)],
      ['due', instant(job.run_at)],
      ['callback', job.callback && callbackText(job.callback)],
      ['waiting for', job.waiting_for && waitingText(job.waiting_for)],
      ['cancel asked', job.cancel_requested_at && instant(job.cancel_requested_at)],
      ['finished', job.finished_at && instant(job.finished_at)],
      ['payload', JSON.stringify(job.payload)],
      ['result', result],
      ['error', reasonText(job.state, job.error)],
    ]),
  )
  out('')
  out(
    table(job.runs, {
      RUN: (run) => run.run_no,
      STATE: (run) => run.state,
      ATTEMPT: (run) => run.attempt,
      WORKER: (run) => (run.assigned_worker_id === null ? '-' : worker(run.assigned_worker_id)),
      STARTED: (run) => instant(run.started_at),
      FINISHED: (run) => instant(run.finished_at),
      ERROR: (run) => reasonText(run.state, run.error) ?? '-',
    }),
  )
  if (job.runs.some(({ started_at }) => started_at !== null)) {
    say(`\nRead its log with ${commandLine(`jobs logs ${job.job_id}`)}`)
  }
}
