import {
  DEFAULT_CATCH_UP_WINDOW_SECONDS,
  DEFAULT_MAX_ATTEMPTS,
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  type DefinitionRequest,
  type DefinitionShape,
  type Scalar,
  type ScheduleRequest,
  type StageShape,
} from '@ichido/sdk/protocol'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { type BackoffFlags, backoffOf, withBackoff } from '../../flags.ts'
import { instantOf, label, payload, seconds, wholeNumber } from '../../values.ts'

/** Fields that the server sets; they are removed, so that a printed definition can be sent back. */
const SERVER_FIELDS: readonly string[] = [
  'definition_id',
  'name',
  'paused',
  'paused_at',
  'version',
  'user_id',
  'next_tick_at',
  'last_tick_at',
  'created_at',
  'updated_at',
] satisfies (keyof DefinitionShape)[]

/** The content of a definition on the command line; a flag overrides the file. */
export interface ContentFlags extends ScheduleFlags, BackoffFlags {
  file?: Record<string, unknown>
  kind?: string
  queue?: string
  payload?: unknown
  priority?: number
  label?: Record<string, string>
  maxAttempts?: number
  timeoutSeconds?: number
  leaseTtlSeconds?: number
  continuationSeconds?: number
  domain?: string
  stages?: unknown
  seqScope?: 'job' | 'attempt'
  /** False: removes the schedule. */
  schedule?: boolean
  topic?: string
  where?: Record<string, Scalar>
  whenPaused?: 'keep' | 'skip'
  /** False: removes the topic. */
  on?: boolean
}

export interface ScheduleFlags {
  cron?: string
  timeZone?: string
  catchUp?: 'skip' | 'last' | 'all'
  catchUpWindow?: number
  overlap?: 'allow' | 'skip' | 'queue_one'
  jitter?: number
  startsAt?: string
  endsAt?: string
}

export function withContent(command: Command): Command {
  withBackoff(command)
    .option(
      '-f, --file <file>',
      'the definition as JSON, in the form of `definitions show --json`; - for standard input',
      file,
    )
    .option('--kind <kind>', 'the kind of its jobs')
    .option('-p, --payload <json>', 'JSON, @file, or - for standard input', payload)
    .option('-q, --queue <name>', `where workers look for them (default: "${DEFAULT_QUEUE}")`)
    .option('--priority <n>', `the highest goes first (default: ${DEFAULT_PRIORITY})`, wholeNumber)
    .option('-l, --label <name=value>', 'repeat the option for several', label)
    .option('--max-attempts <n>', `how many runs may start and fail (default: ${DEFAULT_MAX_ATTEMPTS})`, wholeNumber)
    .option('--timeout-seconds <time>', 'the time limit of one run, such as 10m; a plain number is in seconds', seconds)
    .option('--lease-ttl-seconds <time>', "how long a worker's lease lasts without a heartbeat", seconds)
    .option('--continuation-seconds <time>', 'how long a job waits for a silent worker after its lease', seconds)
    .option('--domain <name>', "a group of kinds for its jobs' events (default: the kind)")
    .option('--stages <json>', "the stages of its jobs' events: JSON, @file, or the name of the preset", stages)
    .addOption(
      new Option('--seq-scope <scope>', 'how the attempts of a job number their events').choices(['job', 'attempt']),
    )
    .option(
      '--cron <rule>',
      'minute, hour, day of month, month, day of week; with six fields, the second comes first; or @daily',
    )
    .option('--topic <topic>', 'triggers of this topic make its jobs')
    .option(
      '--where <path=value>',
      'only triggers with this value in their data; repeat the option for several',
      condition,
    )
    .addOption(
      new Option('--when-paused <what>', 'keep or skip triggers during a pause (default: keep)').choices([
        'keep',
        'skip',
      ]),
    )
  return withSchedule(command)
}

/** Adds the flags of a schedule, without --cron. */
export function withSchedule(command: Command): Command {
  return command
    .option('--time-zone <zone>', 'such as Europe/Berlin (default: UTC)')
    .addOption(
      new Option('--catch-up <what>', 'which missed ticks to make (default: last)').choices(['skip', 'last', 'all']),
    )
    .option(
      '--catch-up-window <time>',
      `ticks that were missed longer ago are not made (default: ${DEFAULT_CATCH_UP_WINDOW_SECONDS / 86_400}d)`,
      seconds,
    )
    .addOption(
      new Option(
        '--overlap <what>',
        'what a tick does while a job of the definition has not ended (default: allow)',
      ).choices(['allow', 'skip', 'queue_one']),
    )
    .option('--jitter <time>', 'jobs begin up to this much later than their ticks', seconds)
    .option('--starts-at <instant>', 'no tick before this instant', instantOf)
    .option('--ends-at <instant>', 'no tick at or after this instant', instantOf)
}

/** The definition with the changes of the flags; the server checks it. */
export function contentFrom(before: object, flags: ContentFlags): DefinitionRequest {
  const base: Record<string, unknown> = Object.fromEntries(
    Object.entries(flags.file ?? before).filter(([name]) => !SERVER_FIELDS.includes(name)),
  )
  const given = {
    kind: flags.kind,
    queue: flags.queue,
    payload: flags.payload,
    priority: flags.priority,
    labels: flags.label,
    max_attempts: flags.maxAttempts,
    backoff: backoffOf(flags),
    timeout_seconds: flags.timeoutSeconds,
    lease_ttl_seconds: flags.leaseTtlSeconds,
    continuation_seconds: flags.continuationSeconds,
    domain: flags.domain,
    stages: flags.stages as StageShape[] | 'eco2' | undefined,
    seq_scope: flags.seqScope,
  }
  const rule = present(scheduleOf(flags))
  const schedule = Object.keys(rule).length === 0 ? {} : { schedule: { ...asObject(base.schedule), ...rule } }
  const trigger = present({ topic: flags.topic, where: flags.where, when_paused: flags.whenPaused })
  const on = Object.keys(trigger).length === 0 ? {} : { on: { ...asObject(base.on), ...trigger } }
  return {
    ...base,
    ...present(given),
    ...(flags.on === false ? { on: null } : on),
    ...(flags.schedule === false ? { schedule: null } : schedule),
  } as DefinitionRequest
}

export function scheduleOf(flags: ScheduleFlags): Partial<ScheduleRequest> {
  return {
    ...(flags.cron === undefined ? {} : { cron: flags.cron }),
    time_zone: flags.timeZone,
    catch_up: flags.catchUp,
    catch_up_window_seconds: flags.catchUpWindow,
    overlap: flags.overlap,
    jitter_seconds: flags.jitter,
    starts_at: flags.startsAt,
    ends_at: flags.endsAt,
  }
}

/** `order.state=paid`; a JSON scalar is parsed: `total=0`, `test=false`. */
function condition(text: string, before: Record<string, Scalar> = {}): Record<string, Scalar> {
  const at = text.indexOf('=')
  if (at < 0) throw new InvalidArgumentError('It must be path=value.')
  const value = text.slice(at + 1)
  return { ...before, [text.slice(0, at)]: /^(null|true|false|-?\d+(\.\d+)?)$/.test(value) ? JSON.parse(value) : value }
}

function present(fields: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}

function asObject(value: unknown): object {
  return typeof value === 'object' && value !== null ? value : {}
}

function file(name: string): Record<string, unknown> {
  const content = payload(name === '-' ? '-' : `@${name}`)
  if (typeof content !== 'object' || content === null || Array.isArray(content)) {
    throw new InvalidArgumentError('It must be a JSON object.')
  }
  return { ...content }
}

const stages = (text: string) => (text === 'eco2' ? text : payload(text))
