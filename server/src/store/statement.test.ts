import { describe, expect, test } from 'vitest'
import { everyStatement } from '../testing/store/explain.ts'
import { eachEngine } from '../testing/store/store.ts'
import { leaseRuns } from './leasing/lease-runs.sql.ts'
import { command } from './port.ts'
import { each, one, query, readRows, select, statement, unnamed } from './statement.ts'

test('a name belongs to one text of PostgreSQL', () => {
  const none = { params: {}, row: {} }
  statement('test_of_one_text', { ...none, postgres: 'SELECT 1', sqlite: 'SELECT 1' })
  statement('test_of_one_text', { ...none, postgres: 'SELECT 1', sqlite: 'SELECT 2' })
  expect(() => statement('test_of_one_text', { ...none, sql: 'SELECT 2' })).toThrow(
    'Two statements are named test_of_one_text',
  )
})

test('text that is built when it is needed has no name', () => {
  expect([unnamed('SELECT 1'), unnamed('SELECT 2')]).toMatchObject([{ name: '' }, { name: '' }])
})

test('no two statements of the store have the same name', async () => {
  expect((await everyStatement()).length).toBeGreaterThan(350)
  expect([1, 2, 3].map((kinds) => leaseRuns(kinds).name)).toEqual(['lease_runs', 'lease_runs', 'lease_runs'])
})

const echo = statement('test_echo', {
  params: { word: 'text', count: 'integer', more: 'integer?' },
  row: { word: 'text', count: 'integer', more: 'integer?', many: 'flag' },
  postgres: `SELECT t.word, t.count, t.more, t.count > 1 AS many
    FROM unnest($word::text[], $count::bigint[], $more::bigint[]) AS t(word, count, more)`,
  sqlite: 'SELECT $word AS word, $count AS count, $more AS more, $count > 1 AS many',
})

describe('a typed statement', () => {
  eachEngine(({ store }) => {
    test('takes its parameters by name, in any order, and gives typed rows', async () => {
      const rows = [
        { count: 1, word: 'a', more: null },
        { more: 3, word: 'b', count: 2 },
      ]
      const found = await store().read(command('test', () => each(echo, rows)))
      expect(found.map((row) => ({ ...row }))).toEqual([
        { word: 'a', count: 1, more: null, many: false },
        { word: 'b', count: 2, more: 3, many: true },
      ])
    })

    test('built when it is needed gives typed rows', async () => {
      const row = { word: { oneOf: ['yes', 'no'] }, list: { json: (value: unknown) => value } } as const
      const text = "SELECT CAST($1 AS text) AS word, '[1,2]' AS list"
      const found = await store().read(command('test', () => select(row, text, ['yes'])))
      expect(found.map(({ word, list }) => [word, list])).toEqual([['yes', [1, 2]]])
      await expect(store().read(command('test', () => select(row, text, ['maybe'])))).rejects.toThrow('Column word')
    })
  })

  test('passes on an unknown word of a newer node', () => {
    const row = { word: { passOn: ['yes', 'no'] } } as const
    expect(readRows({ row }, [{ word: 'maybe' }])).toEqual([{ word: 'maybe' }])
    expect(() => readRows({ row }, [{ word: 1 }])).toThrow('Column word')
  })

  test('does not compile with a swap, a missing name or places', () => {
    const given = { word: 'a', count: 1, more: null }
    const work = () => [
      one(echo, given),
      // @ts-expect-error the two values are swapped
      one(echo, { word: 1, count: 'a', more: null }),
      // @ts-expect-error a parameter is missing
      one(echo, { word: 'a', count: 1 }),
      // @ts-expect-error its parameters have names
      query(echo, 'a', 1, null),
    ]
    expect(work()).toHaveLength(4)
  })

  test('refuses a parameter that it has not declared', () => {
    const make = () => statement('test_wrong', { params: { a: 'text' }, row: {}, sql: 'SELECT $b' })
    expect(make).toThrow('test_wrong has no parameter $b')
  })

  test.each([
    ['text', 1],
    ['text', null],
    ['integer', '1'],
    ['integer', undefined],
    ['text?', 1],
    ['integer?', 'a'],
    ['flag', 2],
  ] as const)('refuses a column of %s that holds %j', (type, value) => {
    const rows = [value === undefined ? {} : { column: value }]
    expect(() => readRows({ row: { column: type } }, rows)).toThrow(`Column column does not hold ${type}`)
  })
})
