export { type Clocks, elapsedMs, type Mark } from './clocks.ts'
export type { WorkerDeps } from './deps.ts'
export { Fatal, Stopped } from './failure.ts'
export { Heart } from './heart.ts'
export type { Hold, Keeper } from './hold.ts'
export { certificateAdvice, httpWorkerTransport, type RemoteTransport, type WorkerHttpOptions } from './http.ts'
export { type LoopOptions, type Outcome, type RunInHand, WorkerLoop } from './loop.ts'
export type { Progress } from './progress.ts'
export type {
  Beat,
  FailReport,
  FinishReport,
  LeaseCall,
  LogChunk,
  Outbox,
  ReportAnswer,
  RunReport,
  WorkerEvent,
  WorkerTransport,
} from './transport.ts'
export { type HandleOptions, type Handler, type HandlerContext, HandlerLoop, handleRun } from './worker.ts'
