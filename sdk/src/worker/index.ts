export { type Clocks, elapsedMs, type Mark } from './clocks.ts'
export { Fatal, Stopped } from './failure.ts'
export { Heart, type Keeper } from './heart.ts'
export type { Hold } from './hold.ts'
export { httpWorkerTransport, type RemoteTransport, type WorkerHttpOptions } from './http.ts'
export { type LoopOptions, type Outcome, type RunInHand, WorkerLoop } from './loop.ts'
export type {
  Beat,
  FailReport,
  FinishReport,
  LeaseCall,
  LogChunk,
  Outbox,
  ReportAnswer,
  RunReport,
  WorkerDeps,
  WorkerEvent,
  WorkerTransport,
} from './transport.ts'
export { type HandleOptions, type Handler, type HandlerContext, HandlerLoop, handleRun } from './worker.ts'
