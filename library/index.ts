// The sources are the server's: `scripts/build.mjs` publishes from them what an application needs.
export * from '../server/src/library/index.ts'
