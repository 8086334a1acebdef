import {
  type Page,
  TRIGGER_STATES,
  type TriggerDetail,
  type TriggerOutcomeShape,
  type TriggerShape,
  type TriggerState,
} from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { facts, instant, printPage, table } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { payload } from '../../values.ts'

interface SendFlags extends JsonFlag {
  dedupeKey?: string
  data?: unknown
}

interface TriggerListFlags extends ListFlags {
  topic?: string
  definition?: string
  state?: TriggerState
}

export function addTriggers(program: Command): void {
  const triggers = program.command('triggers').description('send triggers, and see which jobs they made')
  triggers
    .command('send <topic>')
    .description('send a trigger: a message that something happened')
    .option(
      '-k, --dedupe-key <key>',
      'a key that identifies what happened; the same key is the same trigger (default: a new key)',
    )
    .option('-d, --data <json>', 'any JSON, @file, or - for standard input', payload)
    .option('--json', 'print JSON')
    .action(send)
  const listed = triggers
    .command('list')
    .description('list triggers and their outcomes, newest first')
    .option('--topic <topic>', 'only triggers of this topic')
    .option('--definition <name>', 'only triggers in the ledger of this definition')
    .addOption(new Option('--state <state>', 'only triggers in this state').choices(TRIGGER_STATES))
  paged(listed).action(list)
  triggers
    .command('show <id>')
    .description('show a trigger, its data and its outcomes')
    .option('--json', 'print JSON')
    .action(show)
}

async function send(topic: string, { json, dedupeKey, data }: SendFlags): Promise<void> {
  const { transport } = connect()
  const recorded = await transport.trigger({ topic, ...(data === undefined ? {} : { data }) }, { dedupeKey })
  if (json) return outJson(recorded)
  out(recorded.trigger_id)
  say(
    recorded.duplicate
      ? `It was already recorded at ${instant(recorded.created_at)}.`
      : `See its outcomes with ${commandLine(`triggers show ${recorded.trigger_id}`)}`,
  )
}

async function list({ json, ...filter }: TriggerListFlags): Promise<void> {
  const page = await connect().ask<Page<TriggerShape>>('GET', `/v1/triggers${query({ ...filter })}`)
  printPage(page, json, 'No triggers.', {
    TRIGGER: (trigger) => trigger.trigger_id,
    TOPIC: (trigger) => trigger.topic,
    'DEDUPE KEY': (trigger) => trigger.dedupe_key,
    STATE: (trigger) => trigger.state,
    CREATED: (trigger) => instant(trigger.created_at),
    MADE: (trigger) => trigger.outcomes.map(outcomeText).join(', ') || '-',
  })
}

async function show(id: string, { json }: JsonFlag): Promise<void> {
  const trigger = await connect().ask<TriggerDetail>('GET', `/v1/triggers/${encodeURIComponent(id)}`)
  if (json) return outJson(trigger)
  out(
    facts([
      ['trigger', trigger.trigger_id],
      ['topic', trigger.topic],
      ['dedupe key', trigger.dedupe_key],
      ['user', trigger.user_id],
      ['state', trigger.state],
      ['created', instant(trigger.created_at)],
      ['processed', trigger.processed_at && instant(trigger.processed_at)],
      ['data', JSON.stringify(trigger.data)],
    ]),
  )
  if (trigger.outcomes.length === 0) {
    return say(trigger.processed_at === null ? 'It has not been processed yet.' : 'No definition matched it.')
  }
  out(
    table(trigger.outcomes, {
      DEFINITION: (outcome) => outcome.definition ?? `${outcome.definition_id} (deleted)`,
      OUTCOME: (outcome) => outcome.outcome,
      JOB: (outcome) => outcome.job_id ?? '-',
      REASON: reasonText,
    }),
  )
}

function outcomeText({ definition, job_id: jobId, outcome }: TriggerOutcomeShape): string {
  return `${definition ?? 'deleted'}: ${jobId ?? outcome}`
}

function reasonText({ reason, field }: TriggerOutcomeShape): string {
  return field === null ? (reason ?? '-') : `${reason} ${field}`
}
