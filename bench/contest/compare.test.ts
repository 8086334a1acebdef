import { expect, test } from 'vitest'
import { compare } from './compare.ts'

const rates = {
  ours: [10],
  http: [5],
  sqlite: [12],
  boss: [4],
  graphile: [8],
  bull: [6],
  floor: [20],
  sqliteFloor: [30],
}

test('each form of Ichido stands beside its peers, its limit and its other engine', () => {
  const rows = compare({ what: 'drain', unit: '/s', found: rates })
  expect(rows.map(({ what, against, rival }) => `${what} | ${against} | ${rival}`)).toEqual([
    'drain, in process | pg-boss | peer',
    'drain, in process | graphile-worker | peer',
    'drain, in process | BullMQ | peer',
    'drain, in process | limit: our rows alone, PostgreSQL | limit',
    'drain, over HTTP | pg-boss | peer',
    'drain, over HTTP | graphile-worker | peer',
    'drain, over HTTP | BullMQ | peer',
    'drain, over HTTP | limit: our rows alone, PostgreSQL | limit',
    'drain, in process, SQLite | Ichido in process | self',
    'drain, in process, SQLite | limit: our rows alone, SQLite | limit',
  ])
})

test('the target for the best peer stands in its row, and the stricter of two targets counts', () => {
  const targetOf = (
    against: string,
    found: typeof rates,
    unit: '/s' | 'ms',
    target: { least: number } | { most: number },
  ) =>
    compare({ what: 'x', unit, found, targets: { ours: { best: target, bull: { least: 3 }, sql: { most: 2 } } } }).find(
      (row) => row.what === 'x, in process' && row.against === against,
    )?.target
  expect(targetOf('BullMQ', rates, '/s', { least: 1.2 })).toEqual({ least: 3 })
  expect(targetOf('graphile-worker', rates, '/s', { least: 1.2 })).toEqual({ least: 1.2 })
  expect(targetOf('pg-boss', rates, '/s', { least: 1.2 })).toBeNull()
  expect(targetOf('pg-boss', rates, 'ms', { most: 1 })).toEqual({ most: 1 })
  expect(targetOf('BullMQ', { ...rates, bull: [9] }, '/s', { least: 4 })).toEqual({ least: 4 })
})

test('SQLite must be as good as PostgreSQL, in the direction of the unit', () => {
  const target = (unit: '/s' | 'ms') =>
    compare({ what: 'x', unit, found: rates }).find(({ rival }) => rival === 'self')?.target
  expect(target('/s')).toEqual({ least: 1 })
  expect(target('ms')).toEqual({ most: 1 })
})

test('a row says what its peer does not do', () => {
  const notes = { boss: 'has no users' }
  const found = compare({ what: 'x', unit: '/s', found: rates, notes }).slice(0, 3)
  expect(found.map(({ note }) => note)).toEqual(['has no users', 'removes ended jobs', undefined])
})
