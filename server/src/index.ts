export {
  defineKind,
  Fatal,
  type HandlerContext,
  IchidoError,
  InvalidValue,
  type Job,
  type JobDetail,
  type JobEvent,
  type JobShape,
  type JobState,
  type Kind,
  Stopped,
  type SubmitOptions,
} from '@ichido/sdk'
export { type Ichido, type OpenOptions, open } from './open.ts'
