import type { WaitingForShape } from '@ichido/sdk/protocol'
import { commandLine } from './self.ts'

/** Why nobody works on a job, and what would help. */
export function waitingText({ message, command }: WaitingForShape): string {
  if (command === undefined) return `${message}.`
  return `${message}. To have one: ${commandLine(command.replace(/^ichido /, ''))}`
}
