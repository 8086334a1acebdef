import { createHash } from 'node:crypto'
import { createReadStream, openAsBlob } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import {
  type AwaitedArtifactShape,
  DEFAULT_KEY_TTL_HOURS,
  DEFAULT_MAX_ATTEMPTS,
  DEFAULT_OUTBOX_KEY_TTL_HOURS,
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  type SubmitRequest,
} from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { submitRequest } from '../../../contract/submit.ts'
import { type Connection, connect, Unreachable } from '../../connection/connect.ts'
import { sayRemarks, submitOrKeep } from '../../connection/outbox.ts'
import { type BackoffFlags, backoffOf, withBackoff } from '../../flags.ts'
import { Failure } from '../../output/exit.ts'
import { follow, mayPass, RETRY_MS, showOutcome, UNREACHABLE_MAX_MS } from '../../output/follow.ts'
import { bytesOf, bytesText } from '../../output/print.ts'
import { LiveLine, out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { checked, fileName, hours, instantOf, key, label, number, payload, seconds, wholeNumber } from '../../values.ts'

/** The flag of each field. */
const FLAGS = {
  kind: '<kind>',
  queue: '--queue',
  priority: '--priority',
  delay_seconds: '--delay',
  max_attempts: '--max-attempts',
  timeout_seconds: '--timeout-seconds',
  'backoff.base_seconds': '--backoff-base',
  'backoff.cap_seconds': '--backoff-cap',
  'backoff.jitter': '--backoff-jitter',
  labels: '--label',
  estimated_cost: '--estimated-cost',
  key_ttl_hours: '--key-ttl-hours',
  callback_url: '--callback-url',
}

interface SubmitFlags extends BackoffFlags {
  payload?: unknown
  queue?: string
  key?: string
  keyTtlHours?: number
  label?: Record<string, string>
  delay?: number
  runAt?: string
  priority?: number
  maxAttempts?: number
  timeoutSeconds?: number
  estimatedCost?: number
  callbackUrl?: string
  file?: string[]
  offline?: boolean
  wait?: boolean
  timeout?: number
  json?: boolean
}

export function addSubmit(program: Command): void {
  withBackoff(program.command('submit <kind>'))
    .description('submit a job; with a key, a repeated submission gets the same job')
    .option('-p, --payload <json>', 'JSON, @file, or - for standard input', payload)
    .option('-q, --queue <name>', `where workers look for it (default: "${DEFAULT_QUEUE}")`)
    .option('-k, --key <key>', 'idempotency key', key)
    .option(
      '--key-ttl-hours <time>',
      `how long the key is kept, such as 7d (default: ${DEFAULT_KEY_TTL_HOURS}h; with --offline: ${DEFAULT_OUTBOX_KEY_TTL_HOURS}h)`,
      hours,
    )
    .option('-l, --label <name=value>', 'repeat the option for several', label)
    .option('--delay <time>', 'start no earlier than this long after arrival, such as 10m', seconds)
    .addOption(
      new Option('--run-at <instant>', 'start no earlier than this instant').argParser(instantOf).conflicts('delay'),
    )
    .option('--priority <n>', `the highest goes first (default: ${DEFAULT_PRIORITY})`, wholeNumber)
    .option('--max-attempts <n>', `how many runs may start and fail (default: ${DEFAULT_MAX_ATTEMPTS})`, wholeNumber)
    .option('--timeout-seconds <time>', 'the time limit of one run, such as 10m; a plain number is in seconds', seconds)
    .option('--estimated-cost <n>', 'charged against the cost limit', number)
    .option('--callback-url <url>', 'a URL that gets a signed message when the job ends')
    .addOption(
      new Option(
        '--file <path>',
        'a file for the job, sent before the command continues; repeat the option for several',
      )
        .argParser(fileName)
        .conflicts('offline'),
    )
    .addOption(
      new Option('--offline', 'if no server answers, keep it on this machine for `outbox flush`').conflicts('wait'),
    )
    .option('-w, --wait', 'show progress and print the result')
    .option('--timeout <time>', 'stop waiting after this long, such as 10m', seconds)
    .option('--json', 'print JSON')
    .action(submit)
}

async function submit(kind: string, flags: SubmitFlags): Promise<void> {
  if (flags.timeout !== undefined && !flags.wait) throw new Failure('--timeout goes with --wait.', undefined, 2)
  const connection = connect()
  checkFlags(kind, flags)
  if (flags.offline) return submitOrKeep(connection, toRequest(kind, flags), flags)
  const files = await readFiles(flags.file ?? [])
  const jobId = await send(connection, toRequest(kind, flags, files), flags)
  await sendFiles(connection, jobId, files)
  if (!flags.wait) return
  const job = await follow(connection, jobId, { timeoutSeconds: flags.timeout })
  await showOutcome(connection, job, flags.json ?? false)
}

/** Returns the job's id, and prints it, as JSON only if nothing else follows on stdout. */
async function send({ transport }: Connection, request: SubmitRequest, flags: SubmitFlags): Promise<string> {
  const { response, replayed } = await transport
    .submit(request, flags.key === undefined ? {} : { key: flags.key })
    .catch((error: unknown) => {
      throw error instanceof Unreachable ? uncertain(error, flags.key) : error
    })
  sayRemarks({ response, replayed })
  if (flags.wait) say(`Job ${response.job_id}`)
  else if (flags.json) outJson({ ...response, replayed })
  else {
    out(response.job_id)
    say(`See it with ${commandLine(`jobs show ${response.job_id}`)}`)
  }
  return response.job_id
}

function uncertain(error: Unreachable, key: string | undefined): Failure {
  const again =
    key === undefined ? 'The submission had no --key and may have arrived.' : 'Send it again: the key makes it one job.'
  return new Failure(error.message, [error.advice, again].join('\n'))
}

/** Checked before anything is sent or kept, because a refused job would wait in the outbox in vain. */
function checkFlags(kind: string, flags: SubmitFlags): void {
  checked(submitRequest, toRequest(kind, flags), FLAGS)
}

function toRequest(kind: string, flags: SubmitFlags, files: readonly GivenFile[] = []): SubmitRequest {
  return {
    kind,
    queue: flags.queue,
    payload: flags.payload,
    priority: flags.priority,
    run_at: flags.runAt,
    delay_seconds: flags.delay,
    max_attempts: flags.maxAttempts,
    backoff: backoffOf(flags),
    timeout_seconds: flags.timeoutSeconds,
    labels: flags.label,
    estimated_cost: flags.estimatedCost,
    key_ttl_hours: flags.keyTtlHours,
    callback_url: flags.callbackUrl,
    artifacts: files.length === 0 ? undefined : files.map(listed),
  }
}

/** A file for a job. */
interface GivenFile extends Required<AwaitedArtifactShape> {
  sha256: string
  size_bytes: number
  bytes: Blob
}

/** Hashes the files: known content is not sent again, and a key stands for this content only. */
async function readFiles(paths: readonly string[]): Promise<GivenFile[]> {
  const files: GivenFile[] = []
  for (const path of paths) {
    const name = basename(path)
    if (files.some((file) => file.name === name)) {
      throw new Failure(`Two of the files are called ${name}.`, 'A job has one file of each name.', 2)
    }
    files.push(await readFile(path, name))
  }
  return files
}

async function readFile(path: string, name: string): Promise<GivenFile> {
  const bytes = await openAsBlob(path)
  const hash = createHash('sha256')
  let readBytes = 0
  const live = new LiveLine(() => `reading ${bytesOf(name, readBytes, bytes.size)}`)
  try {
    for await (const part of createReadStream(path)) {
      hash.update(part as Buffer)
      readBytes += (part as Buffer).length
    }
  } finally {
    live.end()
  }
  return { name, bytes, size_bytes: bytes.size, sha256: hash.digest('hex') }
}

function listed({ name, sha256, size_bytes }: GivenFile): AwaitedArtifactShape {
  return { name, sha256, size_bytes }
}

/** Sends the files of a job; survives restarts of the server. */
async function sendFiles(connection: Connection, jobId: string, files: readonly GivenFile[]): Promise<void> {
  for (const file of files) {
    try {
      await sendFile(connection, jobId, file)
    } catch (error) {
      say(
        `Job ${jobId} waits for ${file.name}. If you gave a --key, run the same command again to send the rest; or cancel the`,
      )
      say(`job with ${commandLine(`jobs cancel ${jobId}`)}`)
      throw error
    }
  }
}

async function sendFile({ transport }: Connection, jobId: string, file: GivenFile): Promise<void> {
  const { name, sha256, bytes } = file
  let sent = 0
  let most = 0
  let lastMs = performance.now()
  const onProgress = ({ sentBytes }: { sentBytes: number }) => {
    sent = sentBytes
    // Repeated bytes are no progress.
    if (sent > most) lastMs = performance.now()
    most = Math.max(most, sent)
  }
  const live = new LiveLine(() => bytesOf(name, sent, bytes.size))
  try {
    for (;;) {
      try {
        await transport.upload(bytes, { name, jobId, sha256, onProgress })
        return live.say(`Sent ${name} (${bytesText(bytes.size)})`)
      } catch (error) {
        if (!mayPass(error) || performance.now() - lastMs > UNREACHABLE_MAX_MS) throw error
        await pause(RETRY_MS)
      }
    }
  } finally {
    live.end()
  }
}
