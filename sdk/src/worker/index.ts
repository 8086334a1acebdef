export type { FailReport, FinishReport, LeaseCall, WorkerTransport } from './transport.ts'
export {
  Fatal,
  type HandleOptions,
  type Handler,
  type HandlerContext,
  HandlerLoop,
  Stopped,
  type WorkerDeps,
} from './worker.ts'
