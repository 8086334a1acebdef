export { ERRORS, type ErrorBody, type ErrorCode, IchidoError } from './errors.ts'
export * from './seq.ts'
export * from './shapes.ts'
