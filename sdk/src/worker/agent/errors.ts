import { IchidoError } from '../../protocol/index.ts'

/** The options are wrong; nothing was done. The message is for the person who typed them. */
export class BadOptions extends Error {
  override readonly name = 'BadOptions'
}

/** The agent has neither a token that the control plane accepts nor an enroll token. */
export class NotEnrolled extends Error {
  override readonly name = 'NotEnrolled'
}

/** The state folder belongs to a worker with another name or other queues. */
export class OtherWorker extends Error {
  override readonly name = 'OtherWorker'
}

/** Another running agent uses the state folder. */
export class StateTaken extends Error {
  override readonly name = 'StateTaken'
}

/** True for an error that the user can fix; its message says how. */
export function isExpected(error: unknown): error is Error {
  return [BadOptions, NotEnrolled, OtherWorker, StateTaken, IchidoError].some((expected) => error instanceof expected)
}
