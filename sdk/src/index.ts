export * from './client/index.ts'
// Without the defaults, which a client does not need: this entry is at most 12 KiB.
export * from './protocol/wire.ts'
export { Fatal, type HandleOptions, type Handler, type HandlerContext, Stopped } from './worker/index.ts'
export { sleep, type World } from './world.ts'
