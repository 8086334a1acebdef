import type { Command } from 'commander'
import { expect, test } from 'vitest'
import { createProgram } from './program.ts'
import {
  days,
  hours,
  instantOf,
  label,
  labelFilter,
  limit,
  number,
  pastOf,
  payload,
  seconds,
  states,
  wholeNumber,
} from './values.ts'

test.each([
  ['90', 90],
  ['90s', 90],
  ['1.5m', 90],
  ['2h', 7200],
  ['1d', 86_400],
  ['500ms', 0.5],
])('a time of %s', (text, expected) => {
  expect(seconds(text)).toBe(expected)
})

test('a plain number keeps the unit of its flag, and a time is converted to it', () => {
  expect([hours('24'), hours('90m'), hours('2d'), hours('1.5')]).toEqual([24, 1.5, 48, 1.5])
  expect([days('7'), days('36h'), days('7d'), days('0.5')]).toEqual([7, 1.5, 7, 0.5])
  for (const parse of [seconds, hours, days]) expect(() => parse('36501d')).toThrow('at most 36500d')
})

test('every flag that takes a time takes 30s, 10m, 2h and 7d', () => {
  const optionsOf = (command: Command): Command['options'][number][] => [
    ...command.options,
    ...command.commands.flatMap(optionsOf),
  ]
  const options = optionsOf(createProgram())
  const ofTime = options.filter(({ flags }) => /<time(\|none)?>$/.test(flags))
  expect(ofTime.length).toBeGreaterThan(15)
  for (const { flags, parseArg } of ofTime) {
    const parse = (text: string) => parseArg?.(text, undefined)
    const inSeconds = ['30s', '10m', '2h', '7d'].map((text) => Number(parse(text)) / Number(parse('1s')))
    expect(inSeconds.map(Math.round), flags).toEqual([30, 600, 7_200, 604_800])
    expect(() => parse('soon'), flags).toThrow('It must be a time like 30s, 10m, 2h or 7d.')
  }
  const ofWhen = options.filter(({ flags }) => / <when>$/.test(flags))
  expect(ofWhen.length).toBeGreaterThan(5)
  for (const { flags, parseArg } of ofWhen) expect(parseArg?.('7d', undefined), flags).toMatch(/^20/)
  const since = options.filter(({ long }) => ['--since', '--until', '--from', '--to'].includes(long ?? ''))
  expect(since.filter((option) => !ofWhen.includes(option)).map(({ flags }) => flags)).toEqual([])
  const named = options.filter(({ long = '' }) => /-(seconds|hours|days|ttl|timeout)$/.test(long ?? ''))
  expect(named.filter((option) => !ofTime.includes(option)).map(({ flags }) => flags)).toEqual([])
})

test.each(['', 'soon', '-1s', '10 m', '1w', 's', '1e3'])('%j is not a time', (text) => {
  expect(() => seconds(text)).toThrow('It must be a time like 30s, 10m, 2h or 7d.')
})

test.each(['', ' ', 'one', 'NaN', 'Infinity', '1,5'])('%j is not a number', (text) => {
  expect(() => number(text)).toThrow('It must be a number')
  expect(() => wholeNumber(text)).toThrow('It must be a whole number')
})

test('numbers and limits are parsed', () => {
  expect([number('1.5'), wholeNumber('-3'), limit('5'), limit('none')]).toEqual([1.5, -3, 5, 'none'])
  expect(() => wholeNumber('1.5')).toThrow()
})

test('instants need an offset and are returned in UTC', () => {
  for (const text of ['2030-01-01T01:00:00+01:00', '2030-01-01T00:00Z', '2029-12-31 19:00:00.0-0500']) {
    expect(instantOf(text)).toBe('2030-01-01T00:00:00.000Z')
  }
  const wrong = ['', 'tomorrow', '2030-13-01T00:00:00Z', '12', '2030-01-01', '2030-01-01T00:00:00', '2030-01-01 GMT']
  for (const text of wrong) expect(() => instantOf(text)).toThrow('like 2026-11-15T22:00:00Z')
})

test('a past instant may also be given as how long ago it was', () => {
  expect(pastOf('2030-01-01T01:00:00+01:00')).toBe('2030-01-01T00:00:00.000Z')
  for (const [text, ms] of [
    ['2h', 7_200_000],
    ['1.5m', 90_000],
    ['7d', 604_800_000],
  ] as const) {
    const before = Date.now()
    const found = Date.parse(pastOf(text))
    expect(found).toBeGreaterThanOrEqual(before - ms)
    expect(found).toBeLessThanOrEqual(Date.now() - ms)
  }
  for (const text of ['', 'yesterday', '7', '-2h', '2030-01-01'])
    expect(() => pastOf(text)).toThrow('Or how long ago: 2h.')
  for (const text of ['2 hours', '5w', '99999d']) expect(() => pastOf(text)).toThrow('It must be')
})

test('states and labels of a filter are checked, and written as the API has them', () => {
  expect([states('failed,Timed_out'), labelFilter('a=b=c'), labelFilter('a:b=c'), labelFilter('a=')]).toEqual([
    'FAILED,TIMED_OUT',
    'a:b=c',
    'a:b=c',
    'a:',
  ])
  for (const text of ['', 'ASLEEP', 'FAILED,', 'FAILED, PENDING']) {
    expect(() => states(text)).toThrow('one or more of PENDING, ASSIGNED')
  }
  for (const text of ['', 'a', '=b', ':b']) expect(() => labelFilter(text)).toThrow('name=value')
})

test('labels add up, and their values may contain anything', () => {
  expect(label('b=2=3', label('a=1'))).toEqual({ a: '1', b: '2=3' })
  expect(label('empty=')).toEqual({ empty: '' })
  expect(() => label('=x')).toThrow('name=value')
  expect(() => label('x')).toThrow('name=value')
})

test('a payload that is not JSON, and a missing file, are reported', () => {
  expect(payload('[1,null]')).toEqual([1, null])
  expect(() => payload('{')).toThrow('It must be JSON')
  expect(() => payload('@/does/not/exist')).toThrow('The file cannot be read')
})
