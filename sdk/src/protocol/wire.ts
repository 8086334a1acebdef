/** The wire types: names are snake_case, instants are ISO 8601 in UTC. */

export { tokenIn, withoutCredentials } from './address.ts'
export * from './definitions.ts'
export {
  ERRORS,
  type ErrorAdvice,
  type ErrorBody,
  type ErrorCode,
  endText,
  errorText,
  IchidoError,
  reasonText,
} from './errors.ts'
export * from './jobs.ts'
export * from './limits.ts'
export * from './operations.ts'
export * from './queues.ts'
export * from './seq.ts'
export * from './webhooks.ts'
export * from './workers.ts'
