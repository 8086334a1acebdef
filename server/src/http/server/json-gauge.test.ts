import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { expect, test } from 'vitest'
import { JsonGauge } from './json-gauge.ts'

/** In pieces of so many bytes, so that strings and escapes are cut anywhere. */
async function through(text: string, pieceBytes: number): Promise<string> {
  const bytes = Buffer.from(text)
  const pieces = Array.from({ length: Math.ceil(bytes.length / pieceBytes) }, (_, i) =>
    bytes.subarray(i * pieceBytes, (i + 1) * pieceBytes),
  )
  const gauge = new JsonGauge({ membersMax: 4, elementsMax: 3 })
  const [read] = await Promise.all([buffer(gauge), pipeline(Readable.from(pieces), gauge)])
  return read.toString()
}

const FITS = [
  '{"a":1,"b":[]}',
  '[1,2,3,4]',
  // Nothing in a string counts, not even after a quote or a backslash that is escaped.
  JSON.stringify('{[:,"\\{[:,{[:,{[:,'),
  JSON.stringify(['\\', ',,,,', '"::::']),
]

test.each(FITS)('%s is let through as it is, however it is cut', async (text) => {
  for (const bytes of [1, 2, 3, 5, 100]) expect(await through(text, bytes)).toBe(text)
})

test.each([
  ['{"a":1,"b":{"c":[{}]}}', 'The request body has more than 4 names, arrays and objects'],
  ['{"a":0,"b":0,"c":0,"d":0}', 'The request body has more than 4 names, arrays and objects'],
  ['[1,2,3,4,5]', 'The request body has more than 3 elements'],
])('%s is too much, however it is cut', async (text, words) => {
  for (const bytes of [1, 2, 3, 100]) await expect(through(text, bytes)).rejects.toThrow(words)
})

test('nesting is refused before anything looks at it', async () => {
  await expect(through('['.repeat(100), 100)).rejects.toMatchObject({
    code: 'INVALID_PAYLOAD',
    message: 'The body is nested more than 64 levels deep',
  })
})
