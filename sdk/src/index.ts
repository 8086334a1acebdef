export * from './client/index.ts'
export * from './protocol/index.ts'
export { Fatal, type HandleOptions, type Handler, type HandlerContext, Stopped } from './worker/index.ts'
export { sleep, type World } from './world.ts'
