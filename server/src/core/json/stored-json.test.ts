import { expect, test } from 'vitest'
import {
  isFlag,
  isListOf,
  isMapOf,
  isNumber,
  isObjectOf,
  isOneOf,
  isText,
  orMissing,
  orNull,
  stored,
} from './stored-json.ts'

interface Shape {
  name: string
  size: 's' | 'm'
  at: number | null
  open?: boolean
  tags: string[]
  counts: Readonly<Record<string, number>>
}

const good = { tags: ['a'], name: 'x', size: 's', at: null, counts: { b: 1 } }

const read = stored(
  'shape',
  isObjectOf<Shape>({
    name: isText,
    size: isOneOf(['s', 'm']),
    at: orNull(isNumber),
    open: orMissing(isFlag),
    tags: isListOf(isText),
    counts: isMapOf(isNumber),
  }),
)

test.each([good, { ...good, open: true }, { ...good, at: 5 }, { ...good, later: 1 }])(
  '%j is returned as it is',
  (value) => {
    expect(read(value)).toBe(value)
  },
)

test.each([
  null,
  'text',
  [],
  { ...good, name: 1 },
  { ...good, size: 'l' },
  { ...good, at: '5' },
  { ...good, at: undefined },
  { ...good, open: null },
  { ...good, tags: ['a', 1] },
  { ...good, tags: {} },
  { ...good, counts: [] },
  { ...good, counts: { b: '1' } },
])('%j is refused', (value) => {
  expect(() => read(value)).toThrow('The stored shape is malformed')
})
