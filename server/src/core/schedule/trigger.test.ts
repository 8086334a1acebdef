import { describe, expect, test } from 'vitest'
import { decide, matches, pathProblem, type TriggerRule, takesData, templateProblem } from './trigger.ts'

const RULE: TriggerRule = { topic: 't', where: {}, whenPaused: 'keep' }
const NOW = { paused: false, behind: false }
const LIMIT = 1_000

function filled(template: unknown, data: unknown): unknown {
  const decision = decide({ on: RULE, payload: JSON.stringify(template) }, data, NOW, LIMIT)
  return decision.outcome === 'job' ? JSON.parse(decision.payload) : [decision.reason, decision.field]
}
const taken = (path: string, data: unknown) => filled({ $from: path }, data)

describe('a path', () => {
  test('consists of members and indices; a backslash escapes a dot and itself', () => {
    const data = { a: { b: [{ c: 1 }, null] }, 'a.b': 2, 'back\\slash': 3, '0': 4 }
    expect(taken('a.b.0.c', data)).toBe(1)
    expect(taken('a.b.1', data)).toBe(null)
    expect(taken('a\\.b', data)).toBe(2)
    expect(taken('back\\\\slash', data)).toBe(3)
    expect(taken('0', data)).toBe(4)
    expect(taken('', data)).toEqual(data)
    expect(taken('', 'text')).toBe('text')
  })

  test('finds only data, no properties of objects', () => {
    const data = { list: [1], text: 'abc', none: null }
    for (const path of [
      'list.1',
      'list.length',
      'list.-1',
      'list.00',
      'text.0',
      'none.a',
      'toString',
      'constructor.name',
    ]) {
      expect(taken(path, data)).toEqual(['missing_field', path])
    }
  })

  test('has names between single dots, and a maximum length', () => {
    for (const path of ['', 'a', 'a.b', 'ü.☃', '\\.', 'a b', '$from', 'a\nb']) expect(pathProblem(path)).toBeNull()
    for (const path of ['.', 'a.', '.a', 'a..b', 'a\\b', '\\', 'a'.repeat(257)])
      expect(pathProblem(path)).toMatch(/^must/)
  })
})

test('a rule matches by topic and by every condition, of the same type', () => {
  const holds = (where: TriggerRule['where'], data: unknown) => matches({ ...RULE, where }, 't', data)
  expect(matches(RULE, 'another', {})).toBe(false)
  expect(holds({}, null)).toBe(true)
  expect(holds({ 'a.b': 1, c: 'x' }, { a: { b: 1.0 }, c: 'x' })).toBe(true)
  expect(holds({ 'a.b': 1, c: 'x' }, { a: { b: 1 }, c: 'y' })).toBe(false)
  expect(holds({ a: '1' }, { a: 1 })).toBe(false)
  expect(holds({ a: null }, { a: null })).toBe(true)
  expect(holds({ a: null }, {})).toBe(false)
  expect(holds({ a: false }, { a: 0 })).toBe(false)
})

describe('a template', () => {
  test('takes fields anywhere, and leaves their values unchanged', () => {
    const data = { a: { $from: 'b' }, b: [1] }
    expect(filled({ x: [{ y: { $from: 'a' } }, { $from: 'b' }], z: 1 }, data)).toEqual({
      x: [{ y: { $from: 'b' } }, [1]],
      z: 1,
    })
    expect(takesData({ a: [{ b: { $from: '' } }] })).toBe(true)
    expect(takesData({ a: '$from' })).toBe(false)
  })

  test('that grows too large or too deep makes no job', () => {
    expect(taken('', 'x'.repeat(LIMIT - 2))).toHaveLength(LIMIT - 2)
    expect(taken('', 'x'.repeat(LIMIT - 1))).toEqual(['payload_too_large', null])
    expect(taken('', 'ü'.repeat(LIMIT / 2))).toEqual(['payload_too_large', null])
    const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)])
    expect(taken('', deep(64))).toEqual(deep(64))
    expect(filled([{ $from: '' }], deep(64))).toEqual(['payload_too_deep', null])
  })

  test('that takes more than a string can hold makes no job either', () => {
    // 600 MB; the limit of a string is 512 MB.
    const template = Array(4_000).fill({ $from: '' })
    expect(filled(template, 'x'.repeat(150_000))).toEqual(['payload_too_large', null])
    expect(filled([...template, { $from: 'a' }], 'x'.repeat(150_000))).toEqual(['missing_field', 'a'])
  })

  test('is checked with the rule', () => {
    expect(templateProblem({ a: 1 }, null, true)).toBeNull()
    expect(templateProblem({ $from: 'a' }, RULE, false)).toBeNull()
    expect(templateProblem({ $from: 'a' }, null, false)).toMatchObject({ field: 'payload.$from' })
    expect(templateProblem(1, { ...RULE, where: { 'a.': 1 } }, false)).toMatchObject({ field: 'on.where.a.' })
  })
})

test('a pause is decided before the turn, and the turn before the template', () => {
  const of = (whenPaused: 'keep' | 'skip', paused: boolean, behind: boolean) =>
    decide({ on: { ...RULE, whenPaused }, payload: '{"$from":"a"}' }, {}, { paused, behind }, LIMIT)
  expect(of('keep', true, true)).toMatchObject({ outcome: 'waiting_pause', reason: null })
  expect(of('skip', true, true)).toMatchObject({ outcome: 'skipped', reason: 'paused' })
  expect(of('skip', false, true)).toMatchObject({ outcome: 'waiting_turn' })
  expect(of('keep', false, false)).toMatchObject({ outcome: 'skipped', reason: 'missing_field', field: 'a' })
})
