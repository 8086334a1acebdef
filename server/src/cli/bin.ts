import { enableCompileCache } from 'node:module'

// A third off the time to start, from the second start on.
enableCompileCache()
const { main } = await import('./program.ts')
process.exitCode = await main(process.argv.slice(2))
