import {
  type DeadLetterDetail,
  type DeadLetterGroup,
  type DeadLetterShape,
  errorText,
  type Page,
  type RedriveShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { facts, instant, table } from '../../output/table.ts'
import { out, outJson, paint, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { instantOf, wholeNumber } from '../../values.ts'
import { sayMore } from './jobs.ts'
import { followRedrive, tellRedrive } from './redrive.ts'

interface FilterFlags {
  queue?: string
  kind?: string
  errorCode?: string
  user?: string
  since?: string
  until?: string
  text?: string
}

interface ListFlags extends FilterFlags {
  group?: boolean
  limit?: number
  cursor?: string
  json?: boolean
}

interface RedriveFlags extends FilterFlags {
  allMatching?: boolean
  dryRun?: boolean
  perSecond?: number
  wait: boolean
  json?: boolean
}

interface JsonFlag {
  json?: boolean
}

export function addDead(program: Command): void {
  const dead = program
    .command('dead')
    .description('list, show and redrive dead letters: jobs that have used up their retries')
  filtered(dead.command('list').description('list dead letters, newest first'))
    .option('--group', 'count them by queue, kind and error code')
    .option('--limit <n>', 'at most this many (default: 50)', wholeNumber)
    .option('--cursor <cursor>', 'continue where the last list ended')
    .option('--json', 'print JSON')
    .action(list)
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
    .option('--since <instant>', 'became a dead letter at this instant or later', instantOf)
    .option('--until <instant>', 'became a dead letter before this instant', instantOf)
    .option('--text <text>', "a text that the error's message contains")
}

function filterOf({ queue, kind, errorCode, user, since, until, text }: FilterFlags) {
  return { queue, kind, error_code: errorCode, user_id: user, dead_after: since, dead_before: until, text }
}

async function list({ group, limit, cursor, json, ...flags }: ListFlags): Promise<void> {
  const connection = connect()
  if (group) {
    const path = `/v1/dead-letters/groups${query(filterOf(flags))}`
    const groups = await connection.ask<{ data: DeadLetterGroup[] }>('GET', path)
    if (json) outJson(groups)
    else if (groups.data.length === 0) say('No dead letters.')
    else printGroups(groups.data)
    return
  }
  const path = `/v1/dead-letters${query({ ...filterOf(flags), limit, cursor })}`
  const page = await connection.ask<Page<DeadLetterShape>>('GET', path)
  if (json) return outJson(page)
  if (page.data.length === 0) return say('No dead letters.')
  out(
    table(
      ['JOB', 'DEAD SINCE', 'QUEUE', 'KIND', 'USER', 'ERROR'],
      page.data.map((letter) => [
        letter.job_id,
        instant(letter.dead_at),
        letter.queue,
        letter.kind,
        letter.user_id,
        errorText({ code: letter.error_code, message: letter.error_message }),
      ]),
    ),
  )
  sayMore(page.next_cursor)
  say(`Retry them with ${commandLine('dead redrive JOB')}, or --all-matching`)
}

function printGroups(groups: readonly DeadLetterGroup[]): void {
  out(
    table(
      ['COUNT', 'QUEUE', 'KIND', 'ERROR', 'FIRST', 'LAST', 'FOR EXAMPLE'],
      groups.map((group) => [
        String(group.count),
        group.queue,
        group.kind,
        group.error_code,
        instant(group.first_dead_at),
        instant(group.last_dead_at),
        group.sample_message,
      ]),
    ),
  )
}

async function show(jobId: string, { json }: JsonFlag): Promise<void> {
  const letter = await connect().ask<DeadLetterDetail>('GET', `/v1/dead-letters/${encodeURIComponent(jobId)}`)
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

async function redrive(jobIds: string[], { allMatching, dryRun, perSecond, wait, json, ...flags }: RedriveFlags) {
  const filter = filterOf(flags)
  const named = Object.values(filter).some((value) => value !== undefined)
  if (jobIds.length > 0 === (allMatching ?? false) || (named && !allMatching)) {
    throw new Failure('Name jobs, or use --all-matching, with or without filters.', undefined, EXIT.usage)
  }
  const connection = connect()
  const body = {
    ...(allMatching ? { filter } : { job_ids: jobIds }),
    ...(perSecond === undefined ? {} : { per_second: perSecond }),
    ...(dryRun ? { dry_run: true } : {}),
  }
  if (dryRun) {
    const counted = await connection.ask<{ matched: number }>('POST', '/v1/dead-letters/redrive', body)
    if (json) outJson(counted)
    else say(`${counted.matched} dead letters would be redriven.`)
    return
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
  if (json) outJson(redrive)
  else say(`Redrive ${redrive.redrive_id} is ${redrive.state}: ${tellRedrive(redrive)}`)
}

async function redrives({ json }: JsonFlag): Promise<void> {
  const page = await connect().ask<Page<RedriveShape>>('GET', '/v1/dead-letters/redrives')
  if (json) return outJson(page)
  if (page.data.length === 0) return say('No redrives.')
  out(
    table(
      ['REDRIVE', 'STATE', 'BY', 'BEGAN', 'ENDED', 'PROGRESS'],
      page.data.map((one) => [
        one.redrive_id,
        one.state,
        one.actor,
        instant(one.began_at),
        instant(one.ended_at),
        tellRedrive(one),
      ]),
    ),
  )
}
