/** How every command ends. */
export const EXIT = { done: 0, failed: 1, usage: 2, timeout: 3, interrupted: 130 } as const
export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** Ends the command: what went wrong, and what to do about it. */
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
