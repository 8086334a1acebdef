import type { WaitingForShape } from '@ichido/sdk/protocol'
import { commandLine } from '../self.ts'

/** Why nobody works on a job, and what would help. */
export function waitingText({ message, command }: WaitingForShape): string {
  if (command === undefined) return `${message}.`
  const [words, elsewhere] = [message, command].map((text) =>
    text.replace(/\bichido (?=worker)/, () => commandLine('')),
  )
  return `${words}. To start one on another machine: ${elsewhere}`
}
