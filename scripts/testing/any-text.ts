import fc from 'fast-check'

/**
 * Any text, also with lone surrogates. `fc.string({ unit: 'binary' })` leaves those out, and first puts each of the 1.1 million
 * code points into a map, which takes 1.4 s of CPU time.
 */
export const anyText = (): fc.Arbitrary<string> => fc.string({ unit: codePoint })

const codePoint = fc.integer({ min: 0, max: 0x10ffff }).map(
  (code) => String.fromCodePoint(code),
  (character) => {
    const code = typeof character === 'string' ? character.codePointAt(0) : undefined
    if (code === undefined || String.fromCodePoint(code) !== character) throw new Error('This is not one code point')
    return code
  },
)
