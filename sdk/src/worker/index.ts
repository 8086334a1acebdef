export type { WorkerDeps } from './deps.ts'
export { type Clocks, elapsedMs, type Mark } from './loop/clocks.ts'
export { Fatal, Stopped } from './loop/failure.ts'
export { Heart } from './loop/heart.ts'
export type { Hold, Keeper } from './loop/held-lease.ts'
export { certificateAdvice, httpWorkerTransport, type RemoteTransport, type WorkerHttpOptions } from './loop/http.ts'
export { type LoopOptions, type Outcome, type RunInHand, WorkerLoop } from './loop/loop.ts'
export type { Progress } from './loop/progress.ts'
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
} from './loop/transport.ts'
export { type HandleOptions, type Handler, type HandlerContext, HandlerLoop, handleRun } from './worker.ts'
