export { type Call, type CallOptions, createCall, createOpen, type HttpOptions, type Open } from './call.ts'
export {
  Artifacts,
  type BatchItem,
  Client,
  type RecordedTrigger,
  Reservations,
  type SubmitOptions,
  type TriggerOptions,
} from './client.ts'
export {
  CostLimit,
  ForeignAnswer,
  InvalidValue,
  JobCanceled,
  JobFailed,
  KeyReused,
  MaxRetriesExceeded,
  NoAnswer,
  QuotaExceeded,
  Transient,
} from './errors.ts'
export { httpTransport } from './http.ts'
export { Job } from './job.ts'
export {
  type Backoff,
  checkValue,
  defineKind,
  type Kind,
  type KindOptions,
  type PayloadOf,
  type ResultOf,
  type Schema,
} from './kind.ts'
export { mayRetry, type Retry, type RetryOptions, retryDelayMs, typed } from './retry.ts'
export type {
  Accepted,
  JobEvent,
  ReservationListFilter,
  Retried,
  RetryCall,
  SubmitCall,
  Transport,
  TriggerCall,
  UploadOptions,
  UploadProgress,
  WatchOptions,
} from './transport.ts'
