import { OutboxError } from '@ichido/sdk/outbox'
import { IchidoError } from '@ichido/sdk/protocol'
import { CommanderError } from 'commander'
import { AdvisedError, isOutage } from '../../core/node/store-errors.ts'
import { ConfigError } from '../../node/config.ts'
import { commandLine } from '../self.ts'
import { paint, say } from './terminal.ts'

/** The exit codes of all commands. */
export const EXIT = { done: 0, failed: 1, usage: 2, timeout: 3, interrupted: 130 } as const
export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** Ends the command with a message and advice. */
export class Failure extends Error {
  override readonly name = 'Failure'
  readonly advice: string | undefined
  readonly exitCode: ExitCode

  constructor(message: string, advice?: string, exitCode: ExitCode = EXIT.failed) {
    super(message)
    this.advice = advice
    this.exitCode = exitCode
  }
}

/** Prints an error with advice, and returns the exit code. */
export function report(error: unknown): ExitCode {
  // Commander has printed it; --help and --version are not failures.
  if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.done : EXIT.usage
  if (error instanceof Failure) return fail(error.message, error.advice, error.exitCode)
  if (error instanceof IchidoError) {
    return fail(
      `${error.message.replace(/^filter\./, '')} (${error.code})`,
      adviceFor(error),
      isMalformed(error) ? EXIT.usage : EXIT.failed,
    )
  }
  if (!(error instanceof Error)) return fail(String(error))
  if (error instanceof ConfigError)
    return fail(`These settings are wrong:\n${indent(error.message)}`, undefined, EXIT.usage)
  const isAdvised = error instanceof AdvisedError || error instanceof OutboxError || isOutage(error)
  if (isAdvised || 'syscall' in error) return fail(error.message)
  return fail(`Something unexpected happened: ${error.stack ?? error.message}`)
}

/** True for a malformed value on the command line, also one in the path, for which the server answers NOT_FOUND. */
function isMalformed({ status, code, details }: IchidoError): boolean {
  return status === 400 || (code === 'NOT_FOUND' && 'field' in details)
}

function fail(message: string, advice?: string, exitCode: ExitCode = EXIT.failed): ExitCode {
  const wrong = exitCode === EXIT.failed || exitCode === EXIT.usage
  say(wrong ? `${paint('red', 'error:')} ${message}` : message)
  if (advice !== undefined) say(advice)
  return exitCode
}

function adviceFor({ code, message }: IchidoError): string | undefined {
  switch (code) {
    case 'UNAUTHENTICATED':
      return `Set ICHIDO_TOKEN. On the server's machine, \`${commandLine('token create --user NAME --role ROLE')}\` makes one.`
    case 'FORBIDDEN':
      return 'Set ICHIDO_TOKEN to a token whose role may do this.'
    case 'NOT_FOUND':
      return adviceForMissing(message)
    case 'OPEN_MODE_REFUSED':
      return 'Call the server at 127.0.0.1 from its own machine, or make a token.'
    case 'IDEMPOTENCY_KEY_REUSED':
      return `\`${commandLine('keys show KEY')}\` shows the job of the key.`
    case 'DEFINITION_EXISTS':
      return `\`${commandLine('definitions update NAME')}\` changes it.`
    case 'QUOTA_EXCEEDED':
    case 'COST_LIMIT_EXCEEDED':
      return `\`${commandLine('quota show USER')}\` shows the use of the quota.`
    case 'UNAVAILABLE':
      return `Try again; \`${commandLine('doctor')}\` looks for the cause.`
    default:
      return undefined
  }
}

/** By thing, the command that lists what there is. */
const LISTS: Readonly<Record<string, string>> = {
  backfill: 'definitions backfills NAME',
  'dead letter': 'dead list',
  definition: 'definitions list',
  delivery: 'webhooks deliveries WEBHOOK',
  hook: 'hooks list',
  job: 'jobs list',
  key: 'keys list',
  operation: 'jobs operations',
  redrive: 'dead redrives',
  setting: 'settings list',
  token: 'token list',
  trigger: 'triggers list',
  webhook: 'webhooks list',
  worker: 'workers list',
}

function adviceForMissing(message: string): string | undefined {
  // A path that does not exist, not a job or a key.
  if (/^There is no [A-Z]+ \//.test(message)) return 'Check the path in ICHIDO_URL.'
  const [, what = ''] = /^There is no ([a-z ]+) /.exec(message) ?? []
  const list = LISTS[what]
  return list === undefined ? undefined : `List them: ${commandLine(list)}`
}

function indent(text: string): string {
  return text.replace(/^/gm, '  ')
}
