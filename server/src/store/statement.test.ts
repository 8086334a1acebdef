import { globSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { leaseRuns } from './leasing/leases.sql.ts'
import { statement } from './statement.ts'

test('a name is for one text of PostgreSQL', () => {
  statement('of_one_text', { postgres: 'SELECT 1', sqlite: 'SELECT 1' })
  statement('of_one_text', { postgres: 'SELECT 1', sqlite: 'SELECT 2' })
  expect(() => statement('of_one_text', 'SELECT 2')).toThrow('Two statements are named of_one_text')
})

test('text that is put together when it is needed has no name to keep', () => {
  expect([statement('', 'SELECT 1'), statement('', 'SELECT 2')]).toMatchObject([{ name: '' }, { name: '' }])
})

test('all statements of the store can be known to one process', async () => {
  for (const file of globSync(join(import.meta.dirname, '*/{*.sql,spare-heartbeats}.ts'))) await import(file)
  expect([1, 2, 3].map((kinds) => leaseRuns(kinds).name)).toEqual(['lease_runs', 'lease_runs', 'lease_runs'])
})
