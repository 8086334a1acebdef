export * from '../server/src/idempotency/index.ts'
