export { ERRORS, type ErrorBody, type ErrorCode, IchidoError } from './errors.ts'
export * from './shapes.ts'
