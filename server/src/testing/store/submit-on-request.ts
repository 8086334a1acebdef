import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import { Scene } from './scene.ts'

/** A child process for tests. For each line of input it prints `requested`, submits a job, and prints `answered`. */
const store = openSqlite({ dataDir: process.argv[2] ?? '', now: () => Date.now() })
const scene = new Scene(store)
writeSync(1, 'ready\n')
for await (const line of createInterface({ input: process.stdin })) {
  writeSync(2, `requested ${line}\n`)
  await scene.submitted({ key: line })
  writeSync(1, `answered ${line}\n`)
}
await store.close()
