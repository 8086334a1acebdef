import type {
  DefinitionShape,
  OccurrenceShape,
  Page,
  ScheduleShape,
  SubmitResponse,
  TickShape,
  TriggerRuleShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { follow } from '../../output/follow.ts'
import { showOutcome } from '../../output/outcome.ts'
import { facts, instant, table } from '../../output/table.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { instantOf, instantOrNow, key, NOW, seconds, wholeNumber } from '../../values.ts'
import { sayMore } from '../jobs/jobs.ts'
import { addBackfill } from './backfill.ts'
import {
  type ContentFlags,
  contentFrom,
  type ScheduleFlags,
  scheduleOf,
  withContent,
  withSchedule,
} from './definition-flags.ts'

interface JsonFlag {
  json?: boolean
}

interface ListFlags extends JsonFlag {
  limit?: number
  cursor?: string
}

interface OccurrenceFlags extends ListFlags {
  from?: string
  to?: string
}

interface UpdateFlags extends ContentFlags, JsonFlag {
  ifVersion?: number
}

interface RunFlags extends JsonFlag {
  key?: string
  wait?: boolean
  timeout?: number
}

export function addDefinitions(program: Command): void {
  const definitions = program
    .command('definitions')
    .description('manage definitions: templates of jobs that are made by hand, by a schedule or by triggers')
  paged(definitions.command('list').description('list definitions, newest first')).action(list)
  shown(definitions.command('show <name>').description('show a definition')).action(
    async (name: string, flags: JsonFlag) =>
      print(await connect().ask<DefinitionShape>('GET', pathOf(name)), flags.json),
  )
  shown(
    withContent(definitions.command('create <name>').description('create a definition from flags or a file')),
  ).action(create)
  shown(
    withContent(
      definitions
        .command('update <name>')
        .description('change the fields that you name; with --file, replace the whole definition')
        .option('--no-schedule', 'remove its schedule')
        .option('--no-on', 'remove its topic, so that no trigger makes its jobs'),
    ).option('--if-version <n>', 'only if it still has this version', wholeNumber),
  ).action(update)
  shown(definitions.command('delete <name>').description('delete a definition; its jobs continue')).action(remove)
  for (const [verb, says] of [
    ['pause', 'pause a definition: ticks are skipped, and triggers are kept or skipped by its --when-paused'],
    ['resume', 'resume a definition; kept triggers make their jobs'],
  ] as const) {
    shown(definitions.command(`${verb} <name>`).description(says)).action(async (name: string, flags: JsonFlag) =>
      print(await connect().ask<DefinitionShape>('POST', `${pathOf(name)}/${verb}`), flags.json),
    )
  }
  shown(
    definitions
      .command('run <name>')
      .description('make a job now, regardless of the schedule; not possible if the payload takes fields of a trigger')
      .option('-k, --key <key>', 'idempotency key', key)
      .option('-w, --wait', 'show progress and print the result')
      .option('--timeout <time>', 'stop waiting after this long, such as 10m', seconds),
  ).action(run)
  addBackfill(definitions)
  addTicks(definitions)
}

function addTicks(definitions: Command): void {
  shown(
    definitions
      .command('ticks <name>')
      .description('show the next ticks')
      .option('--limit <n>', 'this many (default: 10)', wholeNumber),
  ).action(ticks)
  paged(
    definitions
      .command('occurrences <name>')
      .description('show the ledger of its ticks, newest first, and the missing ticks')
      .option('--from <instant>', 'ticks at this instant or later', instantOf)
      .option('--to <instant>', 'ticks before this instant (default: now)', instantOrNow),
  ).action(occurrences)
  shown(
    withSchedule(
      definitions.command('preview <cron>').description('show the next ticks of a rule that is not stored'),
    ).option('--limit <n>', 'this many (default: 10)', wholeNumber),
  ).action(async (cron: string, { limit, json, ...flags }: ScheduleFlags & ListFlags) => {
    const body = { schedule: scheduleOf({ ...flags, cron }), limit }
    printTicks(await connect().ask<{ data: TickShape[] }>('POST', '/v1/definitions/preview', body), json)
  })
}

const shown = (command: Command) => command.option('--json', 'print JSON')

function paged(command: Command): Command {
  return shown(
    command
      .option('--limit <n>', 'at most this many (default: 50)', wholeNumber)
      .option('--cursor <cursor>', 'continue where the last list ended'),
  )
}

function pathOf(name: string): string {
  return `/v1/definitions/${encodeURIComponent(name)}`
}

async function list({ json, ...place }: ListFlags): Promise<void> {
  const page = await connect().ask<Page<DefinitionShape>>('GET', `/v1/definitions${query({ ...place })}`)
  if (json) return outJson(page)
  if (page.data.length === 0) return say('No definitions.')
  out(
    table(
      ['NAME', 'KIND', 'QUEUE', 'NEXT TICK', 'LAST TICK', 'SCHEDULE'],
      page.data.map((one) => [
        one.name,
        one.kind,
        one.queue ?? 'default',
        one.paused ? 'paused' : instant(one.next_tick_at),
        instant(one.last_tick_at),
        one.schedule === null ? '-' : `${one.schedule.cron} ${one.schedule.time_zone}`,
      ]),
    ),
  )
  sayMore(page.next_cursor)
}

async function create(name: string, { json, ...flags }: ContentFlags & JsonFlag): Promise<void> {
  const body = { ...contentFrom({}, flags), name }
  const made = await connect().ask<DefinitionShape>('POST', '/v1/definitions', body)
  print(made, json)
  if (made.schedule !== null) say(`See the next ticks with ${commandLine(`definitions ticks ${name}`)}`)
}

/** What nobody named stays as it was read: the version sees to it that nobody changed it in between. */
async function update(name: string, { json, ifVersion, ...flags }: UpdateFlags): Promise<void> {
  const { ask } = connect()
  const before = flags.file ?? (await ask<DefinitionShape>('GET', pathOf(name)))
  const version = ifVersion ?? before.version
  const body = { ...contentFrom(before, flags), ...(version === undefined ? {} : { version }) }
  print(await ask<DefinitionShape>('PUT', pathOf(name), body), json)
}

async function remove(name: string, { json }: JsonFlag): Promise<void> {
  await connect().ask('DELETE', pathOf(name))
  if (json) outJson({ deleted: name })
  else say(`The definition ${name} is deleted.`)
}

async function run(name: string, { key, wait, timeout, json }: RunFlags): Promise<void> {
  if (timeout !== undefined && !wait) throw new Failure('--timeout goes with --wait.', undefined, EXIT.usage)
  const connection = connect()
  const headers = key === undefined ? {} : { 'idempotency-key': `"${key.replace(/[\\"]/g, '\\$&')}"` }
  const job = await connection.ask<SubmitResponse>('POST', `${pathOf(name)}/run`, undefined, headers)
  if (wait) {
    say(`Job ${job.job_id}`)
    const ended = await follow(connection, job.job_id, { timeoutSeconds: timeout })
    return showOutcome(connection, ended, json ?? false)
  }
  if (json) return outJson(job)
  out(job.job_id)
  say(`See it with ${commandLine(`jobs show ${job.job_id}`)}`)
}

async function ticks(name: string, { limit, json }: ListFlags): Promise<void> {
  const { ask } = connect()
  printTicks(await ask<{ data: TickShape[] }>('GET', `${pathOf(name)}/ticks${query({ limit })}`), json)
  if (json) return
  const { paused, paused_at } = await ask<DefinitionShape>('GET', pathOf(name))
  if (paused) {
    say(
      `It has been paused since ${instant(paused_at)}: these ticks are skipped until ${commandLine(`definitions resume ${name}`)}`,
    )
  }
}

async function occurrences(name: string, { json, to, ...filter }: OccurrenceFlags): Promise<void> {
  const path = `${pathOf(name)}/occurrences${query({ ...filter, to: to === NOW ? undefined : to })}`
  const page = await connect().ask<Page<OccurrenceShape>>('GET', path)
  if (json) return outJson(page)
  if (page.data.length === 0) return say('No ticks.')
  out(
    table(
      ['TICK', 'OUTCOME', 'BY', 'LATE', 'JOB', 'REASON'],
      page.data.map((one) => [
        one.skipped_until === null
          ? instant(one.scheduled_for)
          : `${instant(one.scheduled_for)} to ${instant(one.skipped_until)}`,
        one.outcome,
        one.origin,
        one.late_seconds === null ? '-' : `${Math.round(one.late_seconds)} s`,
        one.job_id ?? '-',
        one.reason ?? '-',
      ]),
    ),
  )
  sayMore(page.next_cursor)
}

function printTicks(answer: { data: TickShape[] }, json: boolean | undefined): void {
  const rows = answer.data.map((tick) => [instant(tick.scheduled_for), tick.local_time])
  if (json) outJson(answer)
  else if (rows.length === 0) say('No ticks.')
  else out(table(['TICK', 'LOCAL TIME'], rows))
}

function print(definition: DefinitionShape, json: boolean | undefined): void {
  if (json) outJson(definition)
  else out(describe(definition))
}

function describe(definition: DefinitionShape): string {
  const { schedule, labels } = definition
  const whole = (value: unknown) => (value === null ? null : JSON.stringify(value))
  return facts([
    ['definition', definition.name],
    ['kind', definition.kind],
    ['queue', definition.queue ?? 'default'],
    ['user', definition.user_id],
    ['version', String(definition.version)],
    ['schedule', schedule === null ? 'none' : scheduleText(schedule)],
    ['on', definition.on && triggerText(definition.on)],
    ['paused', definition.paused ? `since ${instant(definition.paused_at)}` : null],
    ['next tick', schedule && instant(definition.next_tick_at)],
    ['last tick', definition.last_tick_at && instant(definition.last_tick_at)],
    ['priority', definition.priority === 0 ? null : String(definition.priority)],
    ['labels', Object.keys(labels).length === 0 ? null : JSON.stringify(labels)],
    ['max attempts', whole(definition.max_attempts)],
    ['backoff', whole(definition.backoff)],
    ['timeout', whole(definition.timeout_seconds)],
    ['lease time', whole(definition.lease_ttl_seconds)],
    ['continuation', whole(definition.continuation_seconds)],
    ['domain', definition.domain],
    ['stages', whole(definition.stages)],
    ['payload', JSON.stringify(definition.payload)],
  ])
}

function triggerText({ topic, where, when_paused }: TriggerRuleShape): string {
  const conditions = Object.entries(where).map(([path, value]) => `${path} = ${JSON.stringify(value)}`)
  return [`topic ${topic}`, ...conditions, `when paused ${when_paused}`].join(', ')
}

function scheduleText(schedule: ScheduleShape): string {
  const parts = [
    `${schedule.cron} ${schedule.time_zone}`,
    `catch up ${schedule.catch_up}`,
    `overlap ${schedule.overlap}`,
  ]
  if (schedule.jitter_seconds > 0) parts.push(`jitter ${schedule.jitter_seconds} s`)
  if (schedule.starts_at !== null) parts.push(`from ${instant(schedule.starts_at)}`)
  if (schedule.ends_at !== null) parts.push(`until ${instant(schedule.ends_at)}`)
  return parts.join(', ')
}
