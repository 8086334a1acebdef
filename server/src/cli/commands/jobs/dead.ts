import {
  type DeadLetterDetail,
  type DeadLetterGroup,
  type DeadLetterShape,
  errorText,
  type Page,
  type RedriveShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { jobIdOf, jobIdsOf } from '../../connection/job-id.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { followProgress } from '../../output/follow.ts'
import { facts, instant, printPage, sayOrJson } from '../../output/print.ts'
import { out, outJson, paint, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { pastOf, wholeNumber } from '../../values.ts'

interface FilterFlags {
  queue?: string
  kind?: string
  errorCode?: string
  user?: string
  since?: string
  until?: string
  text?: string
}

interface DeadListFlags extends FilterFlags, ListFlags {
  group?: boolean
}

interface RedriveFlags extends FilterFlags, JsonFlag {
  allMatching?: boolean
  dryRun?: boolean
  perSecond?: number
  wait: boolean
}

export function addDead(program: Command): void {
  const dead = program
    .command('dead')
    .description('list, show and redrive dead letters: jobs that have used up their retries')
  const listed = filtered(dead.command('list').description('list dead letters, newest first'))
  paged(listed.option('--group', 'count them by queue, kind and error code')).action(list)
  dead
    .command('show <job-id>')
    .description('show a dead letter with its runs and errors')
    .option('--json', 'print JSON')
    .action(show)
  filtered(
    dead
      .command('redrive [job-id...]')
      .description('retry dead letters, each with a full retry budget; Ctrl-C leaves it running')
      .option('--all-matching', 'all that match the filters; without filters, all dead letters'),
  )
    .option('--dry-run', 'only count, change nothing')
    .option('--per-second <n>', 'at most this many per second', wholeNumber)
    .option('--no-wait', 'do not wait for the end')
    .option('--json', 'print JSON')
    .action(redrive)
  dead.command('redrives').description('list redrives, newest first').option('--json', 'print JSON').action(redrives)
  dead
    .command('progress <redrive-id>')
    .description('show the progress of a redrive until it is done; Ctrl-C leaves it running')
    .option('--json', 'print JSON')
    .action(async (redriveId: string, { json }: JsonFlag) => {
      finish(await followRedrive(connect(), redriveId), json)
    })
  dead
    .command('abort <redrive-id>')
    .description('abort a redrive; jobs that were already redriven stay so')
    .option('--json', 'print JSON')
    .action(async (redriveId: string, { json }: JsonFlag) => {
      finish(await connect().ask<RedriveShape>('POST', `/v1/dead-letters/redrives/${redriveId}/abort`), json)
    })
}

function filtered(command: Command): Command {
  return command
    .option('--queue <name>')
    .option('--kind <name>')
    .option('--error-code <code>')
    .option('--user <id>')
    .option('--since <when>', 'became a dead letter at this instant or later; or how long ago, such as 2h', pastOf)
    .option('--until <when>', 'became a dead letter before this instant; or how long ago', pastOf)
    .option('--text <text>', "a text that the error's message contains")
}

function filterOf({ queue, kind, errorCode, user, since, until, text }: FilterFlags) {
  return { queue, kind, error_code: errorCode, user_id: user, dead_after: since, dead_before: until, text }
}

async function list({ group: grouped, limit, cursor, json, ...flags }: DeadListFlags): Promise<void> {
  const { ask } = connect()
  if (grouped) {
    const groups = await ask<{ data: DeadLetterGroup[] }>('GET', `/v1/dead-letters/groups${query(filterOf(flags))}`)
    return printPage(groups, json, 'No dead letters.', {
      COUNT: (group) => group.count,
      QUEUE: (group) => group.queue,
      KIND: (group) => group.kind,
      ERROR: (group) => group.error_code,
      FIRST: (group) => instant(group.first_dead_at),
      LAST: (group) => instant(group.last_dead_at),
      'FOR EXAMPLE': (group) => group.sample_message,
    })
  }
  const path = `/v1/dead-letters${query({ ...filterOf(flags), limit, cursor })}`
  const page = await ask<Page<DeadLetterShape>>('GET', path)
  printPage(page, json, 'No dead letters.', {
    JOB: (letter) => letter.job_id,
    'DEAD SINCE': (letter) => instant(letter.dead_at),
    QUEUE: (letter) => letter.queue,
    KIND: (letter) => letter.kind,
    USER: (letter) => letter.user_id,
    ERROR: (letter) => errorText({ code: letter.error_code, message: letter.error_message }),
  })
  if (!json && page.data.length > 0) say(`Retry them with ${commandLine('dead redrive JOB')}, or --all-matching`)
}

async function show(given: string, { json }: JsonFlag): Promise<void> {
  const connection = connect()
  const jobId = await jobIdOf(connection, given)
  const letter = await connection.ask<DeadLetterDetail>('GET', `/v1/dead-letters/${encodeURIComponent(jobId)}`)
  if (json) return outJson(letter)
  const { job } = letter
  out(
    facts([
      ['job', letter.job_id],
      ['dead since', instant(letter.dead_at)],
      ['queue', letter.queue],
      ['kind', letter.kind],
      ['user', letter.user_id],
      ['error', errorText({ code: letter.error_code, message: letter.error_message })],
      ['failed runs', String(letter.retry_count)],
      ['redrive', letter.redrive_id],
      ['waiting for', job.waiting_for?.message ?? null],
      ['payload', JSON.stringify(job.payload)],
    ]),
  )
  if (job.error?.traceback !== undefined) {
    out(`\n${paint('bold', 'stderr or traceback of the last run', process.stdout)}`)
    out(job.error.traceback)
  }
  say(`\nRetry it with ${commandLine(`dead redrive ${jobId}`)}`)
  say(`or with another payload: ${commandLine(`jobs retry ${jobId} --payload JSON`)}`)
}

async function redrive(given: string[], { allMatching, dryRun, perSecond, wait, json, ...flags }: RedriveFlags) {
  const filter = filterOf(flags)
  const named = Object.values(filter).some((value) => value !== undefined)
  if (given.length > 0 === (allMatching ?? false) || (named && !allMatching)) {
    throw new Failure('Name jobs, or use --all-matching, with or without filters.', undefined, EXIT.usage)
  }
  const connection = connect()
  const jobIds = await jobIdsOf(connection, given)
  const body = {
    ...(allMatching ? { filter } : { job_ids: jobIds }),
    ...(perSecond === undefined ? {} : { per_second: perSecond }),
    ...(dryRun ? { dry_run: true } : {}),
  }
  if (dryRun) {
    const counted = await connection.ask<{ matched: number }>('POST', '/v1/dead-letters/redrive', body)
    return sayOrJson(counted, json, `${counted.matched} dead letters would be redriven.`)
  }
  const begun = await connection.ask<RedriveShape>('POST', '/v1/dead-letters/redrive', body)
  if (wait) {
    const ended = await followRedrive(connection, begun.redrive_id)
    finish(ended, json)
    if (jobIds.length > 0 && ended.matched === 0) throw new Failure('None of these jobs is a dead letter.')
    return
  }
  if (json) return outJson(begun)
  out(begun.redrive_id)
  say(`See it with ${commandLine(`dead progress ${begun.redrive_id}`)}`)
}

function finish(redrive: RedriveShape, json: boolean | undefined): void {
  sayOrJson(redrive, json, `Redrive ${redrive.redrive_id} is ${redrive.state}: ${redriveText(redrive)}`)
}

async function redrives({ json }: JsonFlag): Promise<void> {
  const page = await connect().ask<Page<RedriveShape>>('GET', '/v1/dead-letters/redrives')
  // Without the hint about the next page, because this command has no --cursor.
  printPage(json ? page : { data: page.data }, json, 'No redrives.', {
    REDRIVE: (redrive) => redrive.redrive_id,
    STATE: (redrive) => redrive.state,
    BY: (redrive) => redrive.actor,
    BEGAN: (redrive) => instant(redrive.began_at),
    ENDED: (redrive) => instant(redrive.ended_at),
    PROGRESS: redriveText,
  })
}

/** Shows the progress of a redrive until it has ended; Ctrl-C leaves it running. */
function followRedrive(connection: Connection, redriveId: string): Promise<RedriveShape> {
  return followProgress({
    look: () => connection.ask<RedriveShape>('GET', `/v1/dead-letters/redrives/${redriveId}`),
    hasEnded: ({ state }) => state !== 'running',
    text: redriveText,
    continues: { message: `Redrive ${redriveId} continues without this command.`, advice: howToSee(redriveId) },
  })
}

function howToSee(redriveId: string): string {
  const lines = [`  ${commandLine(`dead progress ${redriveId}`)}`, `  ${commandLine(`dead abort ${redriveId}`)}`]
  return ['See it with', lines[0], 'or end it with', lines[1]].join('\n')
}

function redriveText({ matched, redriven, waiting, skipped }: RedriveShape): string {
  const parts = [`${redriven} of ${matched} redriven`]
  if (waiting > 0) parts.push(`${waiting} wait for a quota`)
  if (skipped > 0) parts.push(`${skipped} skipped`)
  return parts.join(', ')
}
