// The sources are in the server; `scripts/build.mjs` publishes the parts that an application needs.
export * from '../server/src/library/index.ts'
