import { IchidoError } from '@ichido/sdk/protocol'
import { CommanderError } from 'commander'
import { commandLine } from '../self.ts'
import { EXIT, type ExitCode, Failure } from './exit.ts'
import { paint, say } from './terminal.ts'

/** Errors of our own whose message says all there is to say. */
const SELF_EXPLAINING = [
  'ArtifactsElsewhere',
  'BackupRefused',
  'KeyKept',
  'NoSuchItem',
  'OutboxFull',
  'OutboxTooNew',
  'OutboxUnavailable',
  'ShardsRefused',
  'StoreFull',
  'StoreInUse',
  'StoreRefused',
  'StoreUnavailable',
]

/** Says what went wrong and what to do, and answers with how the process should end. */
export function report(error: unknown): ExitCode {
  // Commander has said it already; asking for help or the version is no failure.
  if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.done : EXIT.usage
  if (error instanceof Failure) return fail(error.message, error.advice, error.exitCode)
  if (error instanceof IchidoError) {
    return fail(`${error.message} (${error.code})`, adviceFor(error), isMalformed(error) ? EXIT.usage : EXIT.failed)
  }
  if (!(error instanceof Error)) return fail(String(error))
  if (error.name === 'ConfigError')
    return fail(`These settings are wrong:\n${indent(error.message)}`, undefined, EXIT.usage)
  if (SELF_EXPLAINING.includes(error.name) || 'syscall' in error) return fail(error.message)
  return fail(`Something unexpected happened: ${error.stack ?? error.message}`)
}

/** What was typed here cannot be meant. Also of a path, which the server does not find then: it names the part that is wrong. */
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
      // A path that does not exist, not a job or a key.
      return /^There is no [A-Z]+ \//.test(message) ? 'Check the path in ICHIDO_URL.' : undefined
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

function indent(text: string): string {
  return text.replace(/^/gm, '  ')
}
