export { type Clocks, elapsedMs, type Mark } from '../world.ts'
export { Fatal } from './loop/failure.ts'
export { Heart } from './loop/heart.ts'
export { certificateAdvice, httpWorkerTransport, type RemoteTransport, type WorkerHttpOptions } from './loop/http.ts'
export { type LoopOptions, type Outcome, type RunInHand, WorkerLoop } from './loop/loop.ts'
export type {
  Beat,
  FailReport,
  FinishReport,
  Hold,
  Keeper,
  LeaseCall,
  LogChunk,
  Outbox,
  ReportAnswer,
  RunReport,
  WorkerDeps,
  WorkerEvent,
  WorkerTransport,
} from './loop/ports.ts'
export type { Progress } from './loop/progress.ts'
export { Stopped } from './loop/run-stop.ts'
export { type HandleOptions, type Handler, type HandlerContext, HandlerLoop, handleRun } from './worker.ts'
