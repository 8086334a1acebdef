import {
  DEFAULT_QUEUE,
  DEFAULT_TICKS_LIMIT,
  type DefinitionShape,
  type OccurrenceShape,
  type Page,
  type ScheduleShape,
  type SubmitResponse,
  type TickShape,
  type TriggerRuleShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { follow, showOutcome } from '../../output/follow.ts'
import { instant, printFacts, printPage, sayOrJson } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { key, NOW, pastOf, pastOrNow, seconds, wholeNumber } from '../../values.ts'
import { addBackfill } from './backfill.ts'
import {
  type ContentFlags,
  contentFrom,
  type ScheduleFlags,
  scheduleOf,
  withContent,
  withSchedule,
} from './definition-flags.ts'

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
  for (const [verb, about] of [
    ['pause', 'pause a definition: ticks are skipped, and triggers are kept or skipped by its --when-paused'],
    ['resume', 'resume a definition; kept triggers make their jobs'],
  ] as const) {
    shown(definitions.command(`${verb} <name>`).description(about)).action(async (name: string, flags: JsonFlag) =>
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
      .option('--limit <n>', `this many (default: ${DEFAULT_TICKS_LIMIT})`, wholeNumber),
  ).action(ticks)
  paged(
    definitions
      .command('occurrences <name>')
      .description('show the ledger of its ticks, newest first, and the missing ticks')
      .option('--from <when>', 'ticks at this instant or later; or how long ago, such as 2h', pastOf)
      .option('--to <when>', 'ticks before this instant; or how long ago (default: now)', pastOrNow),
  ).action(occurrences)
  shown(
    withSchedule(
      definitions.command('preview <cron>').description('show the next ticks of a rule that is not stored'),
    ).option('--limit <n>', `this many (default: ${DEFAULT_TICKS_LIMIT})`, wholeNumber),
  ).action(async (cron: string, { limit, json, ...flags }: ScheduleFlags & ListFlags) => {
    const body = { schedule: scheduleOf({ ...flags, cron }), limit }
    printTicks(await connect().ask<{ data: TickShape[] }>('POST', '/v1/definitions/preview', body), json)
  })
}

const shown = (command: Command) => command.option('--json', 'print JSON')

function pathOf(name: string): string {
  return `/v1/definitions/${encodeURIComponent(name)}`
}

async function list({ json, ...place }: ListFlags): Promise<void> {
  const page = await connect().ask<Page<DefinitionShape>>('GET', `/v1/definitions${query({ ...place })}`)
  printPage(page, json, 'No definitions.', {
    NAME: (definition) => definition.name,
    KIND: (definition) => definition.kind,
    QUEUE: (definition) => definition.queue ?? DEFAULT_QUEUE,
    'NEXT TICK': (definition) => (definition.paused ? 'paused' : instant(definition.next_tick_at)),
    'LAST TICK': (definition) => instant(definition.last_tick_at),
    SCHEDULE: ({ schedule }) => (schedule === null ? '-' : `${schedule.cron} ${schedule.time_zone}`),
  })
}

async function create(name: string, { json, ...flags }: ContentFlags & JsonFlag): Promise<void> {
  const body = { ...contentFrom({}, flags), name }
  const made = await connect().ask<DefinitionShape>('POST', '/v1/definitions', body)
  print(made, json)
  if (made.schedule !== null) say(`See the next ticks with ${commandLine(`definitions ticks ${name}`)}`)
}

/** Fields that are not named keep their value; the version detects a change in between. */
async function update(name: string, { json, ifVersion, ...flags }: UpdateFlags): Promise<void> {
  const { ask } = connect()
  const before = flags.file ?? (await ask<DefinitionShape>('GET', pathOf(name)))
  const version = ifVersion ?? before.version
  const body = { ...contentFrom(before, flags), ...(version === undefined ? {} : { version }) }
  print(await ask<DefinitionShape>('PUT', pathOf(name), body), json)
}

async function remove(name: string, { json }: JsonFlag): Promise<void> {
  await connect().ask('DELETE', pathOf(name))
  sayOrJson({ deleted: name }, json, `The definition ${name} is deleted.`)
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
  printPage(page, json, 'No ticks.', {
    TICK: ({ scheduled_for, skipped_until }) =>
      skipped_until === null ? instant(scheduled_for) : `${instant(scheduled_for)} to ${instant(skipped_until)}`,
    OUTCOME: (tick) => tick.outcome,
    BY: (tick) => tick.origin,
    LATE: ({ late_seconds }) => (late_seconds === null ? '-' : `${Math.round(late_seconds)} s`),
    JOB: (tick) => tick.job_id ?? '-',
    STATE: (tick) => tick.job_state ?? '-',
    REASON: (tick) => tick.reason ?? '-',
  })
}

function printTicks(ticks: { data: TickShape[] }, json: boolean | undefined): void {
  printPage(ticks, json, 'No ticks.', {
    TICK: (tick) => instant(tick.scheduled_for),
    'LOCAL TIME': (tick) => tick.local_time,
  })
}

function print(definition: DefinitionShape, json: boolean | undefined): void {
  const { schedule, labels } = definition
  const whole = (value: unknown) => (value === null ? null : JSON.stringify(value))
  printFacts(definition, json, [
    ['definition', definition.name],
    ['kind', definition.kind],
    ['queue', definition.queue ?? DEFAULT_QUEUE],
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
