export * from './defaults.ts'
export * from './wire.ts'
