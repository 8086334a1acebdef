export { type Call, createCall, createOpen, type HttpOptions, type Open } from './call.ts'
export { Client, type SubmitOptions } from './client.ts'
export {
  CostLimit,
  ForeignAnswer,
  KeyReused,
  MaxRetriesExceeded,
  NoAnswer,
  QuotaExceeded,
  Transient,
} from './errors.ts'
export { httpTransport } from './http.ts'
export { Job } from './job.ts'
export { checkValue, defineKind, InvalidValue, type Kind, type KindOptions, type Schema } from './kind.ts'
export { mayRetry, type Retry, type RetryOptions, retryDelayMs, typed } from './retry.ts'
export type { JobEvent, JobListFilter, SubmitCall, Transport, WatchOptions } from './transport.ts'
