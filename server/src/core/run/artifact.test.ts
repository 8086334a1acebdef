import { describe, expect, test } from 'vitest'
import { artifactName, awaitedArtifacts } from '../../contract/artifacts.ts'
import { awaitsUploads, awaitUploadsFrom, parseRange, wantedRunAt } from './artifact.ts'
import { RUN_AT_MAX_AHEAD_MS } from './job.ts'

describe('a held run', () => {
  test('is recognized by its run_at, and keeps the wanted run_at', () => {
    const wanted = Date.UTC(2100, 0, 1) + RUN_AT_MAX_AHEAD_MS
    expect([
      awaitsUploads(wanted),
      awaitsUploads(awaitUploadsFrom(wanted)),
      wantedRunAt(awaitUploadsFrom(wanted)),
      wantedRunAt(wanted),
    ]).toEqual([false, true, wanted, wanted])
    expect(Number.isSafeInteger(awaitUploadsFrom(wanted))).toBe(true)
  })
})

describe('a range', () => {
  test.each([
    ['bytes=0-0', { first: 0, last: 0 }],
    ['bytes=2-', { first: 2, last: 9 }],
    ['bytes=2-5', { first: 2, last: 5 }],
    ['bytes=2-999', { first: 2, last: 9 }],
    ['bytes=-3', { first: 7, last: 9 }],
    ['bytes=-99', { first: 0, last: 9 }],
    ['bytes=9-', { first: 9, last: 9 }],
    ['bytes=10-', 'unsatisfiable'],
    ['bytes=-0', 'unsatisfiable'],
    ['bytes=5-2', null],
    ['bytes=0-1,4-5', null],
    ['bytes=-', null],
    ['lines=0-1', null],
    ['bytes=0-99999999999999999999', null],
    ['', null],
    [undefined, null],
  ])('%s of 10 bytes is %j', (header, range) => {
    expect(parseRange(header, 10)).toEqual(range)
  })

  test('no range of an empty file can be satisfied', () => {
    expect([parseRange('bytes=0-', 0), parseRange('bytes=-1', 0)]).toEqual(['unsatisfiable', 'unsatisfiable'])
  })
})

describe('a name', () => {
  test.each(['a', 'H.pbe-kjpaw.UPF', 'data (2).tar.gz', '結果.csv', '학습 데이터.bin', '_x', 'a..b'])(
    '%s is one',
    (name) => {
      expect(artifactName.safeParse(name).success).toBe(true)
    },
  )

  test.each([
    '',
    '.',
    '..',
    '../etc/passwd',
    '..\\x',
    'a/b',
    '/a',
    'C:\\x',
    '.hidden',
    '-rf',
    'a\u0000b',
    'a\nb',
    'a ',
    'a.',
    ' a',
    'a\u202eb',
    '\ud800',
    'a"b',
    'x'.repeat(256),
    '結'.repeat(86),
    'CON:',
  ])('%j is none', (name) => {
    expect(artifactName.safeParse(name).success).toBe(false)
  })

  test('occurs once in a list', () => {
    expect(awaitedArtifacts.safeParse([{ name: 'a' }, { name: 'b' }]).success).toBe(true)
    expect(awaitedArtifacts.safeParse([{ name: 'a' }, { name: 'a' }]).success).toBe(false)
  })
})
