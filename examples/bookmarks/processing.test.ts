import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { type Ichido, open } from 'ichido'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { BookmarkTable } from './bookmark-table.ts'
import { openDatabase } from './database.ts'
import { FailedJobTable } from './failed-job-table.ts'
import { bookmarkProcessing } from './job.ts'
import { Processing } from './processing.ts'
import { internet } from './reading/fetch-page.ts'
import { extractive } from './reading/summarise.ts'

let folder: string
let ichido: Ichido
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'processing-'))
  ichido = await open({ dataDir: join(folder, 'ichido') })
})
afterAll(async () => {
  await ichido.close({ drainMs: 0 })
  rmSync(folder, { recursive: true })
})

test('a bookmark that cannot be submitted delays no other, and has one retry at a time', async () => {
  const database = openDatabase(join(folder, 'bookmarks.db'))
  const bookmarks = new BookmarkTable(database)
  const troubles: unknown[] = []
  const again = Promise.withResolvers<void>()
  const processing = new Processing({
    ichido,
    kind: bookmarkProcessing(1),
    bookmarks,
    failedJobs: new FailedJobTable(database),
    network: internet,
    summariser: extractive,
    changed: () => {},
    onTrouble: (error) => {
      if (troubles.push(error) > 5) again.resolve()
    },
  })
  const add = (url: string) =>
    bookmarks.save({ userId: 'me', url, normalUrl: url, sourceHint: null, createdFrom: 'web', key: 'k', nowMs: 1 })
  const { bookmark: bad } = add('http://bad.test/')
  // Ichido refuses this id, because the kind's payload requires a UUID.
  database.prepare(`UPDATE bookmarks SET id = 'bad' WHERE id = ?`).run(bad.id)
  const { bookmark: good } = add('http://good.test/')

  await Promise.all(Array.from({ length: 5 }, () => processing.submitMissing()))
  expect(bookmarks.find(good.id)?.job_id).toEqual(expect.any(String))
  expect(bookmarks.listWithoutJob().map(({ id }) => id)).toEqual(['bad'])
  await again.promise
  // Other retries that were due at the same time have run now.
  await setImmediate()
  processing.close()
  expect(troubles).toHaveLength(6)
  database.close()
})
