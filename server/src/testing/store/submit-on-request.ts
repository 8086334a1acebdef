import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import { Scene } from './scene.ts'

/** Run by a test that watches it: says `requested`, submits, says `answered`, for each line that it is sent. */
const store = openSqlite({ dataDir: process.argv[2] ?? '', now: () => Date.now() })
const scene = new Scene(store)
writeSync(1, 'ready\n')
for await (const line of createInterface({ input: process.stdin })) {
  writeSync(2, `requested ${line}\n`)
  await scene.submitted({ key: line })
  writeSync(1, `answered ${line}\n`)
}
await store.close()
