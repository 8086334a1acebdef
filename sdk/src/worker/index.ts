export { Fatal, Stopped } from './failure.ts'
export type { FailReport, FinishReport, LeaseCall, WorkerDeps, WorkerTransport } from './transport.ts'
export { type HandleOptions, type Handler, type HandlerContext, HandlerLoop } from './worker.ts'
