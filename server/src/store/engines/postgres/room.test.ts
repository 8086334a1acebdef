import pg from 'pg'
import { expect, test } from 'vitest'
import { freshDatabase } from '../../../../../scripts/testing/services.ts'
import { openNode } from '../../../testing/store/store.ts'
import { isDiskFull } from './errors.ts'

const NO_SPACE = 'No space left on device'

test.each([
  ['53100', `could not extend file "base/1/2": ${NO_SPACE}`, true],
  ['58030', `could not write to file "base/pgsql_tmp/1": ${NO_SPACE}`, true],
  ['53200', `could not resize shared memory segment: ${NO_SPACE}`, true],
  ['XX000', 'could not extend file "base/1/2": Disk quota exceeded', true],
  ['58030', 'could not read block 0: Input/output error', false],
  ['53200', 'out of memory', false],
])('%s %s: whether that is a full disk', (code, message, expected) => {
  expect(isDiskFull(Object.assign(new Error(message), { code }))).toBe(expected)
})

test('two nodes that check for room at once leave no table behind', async () => {
  const database = await freshDatabase()
  const nodes = [await openNode(database.url), await openNode(database.url)]
  await Promise.all(nodes.flatMap((node) => [node.requireRoom(), node.requireRoom()]))
  const client = new pg.Client(database.url)
  await client.connect()
  const { rows } = await client.query("SELECT relname FROM pg_class WHERE relname LIKE 'room_probe%'")
  expect(rows).toEqual([])
  await client.end()
  for (const node of nodes) await node.close()
  await database.leave()
})
