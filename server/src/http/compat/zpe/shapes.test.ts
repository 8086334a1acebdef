import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { countAtoms } from './shapes.ts'

const H2 = readFileSync(join(import.meta.dirname, '../../../../../examples/zpe-h2/h2.in'), 'utf8')

test.each([
  ['the example', H2, 2],
  ['Windows line ends', H2.replaceAll('\n', '\r\n'), 2],
  ['any case, and a unit in brackets', 'atomic_positions {crystal}\nFe1 0 0 0\n', 1],
  ['atoms that are held, and expressions', 'ATOMIC_POSITIONS alat\nC 1/3 2/3 0.5*sqrt(2) 0 0 0\n', 1],
  ['comments and empty lines between atoms', 'ATOMIC_POSITIONS\n! a\n\nH 0 0 0 ! first\n# b\nH 0 0 1\n', 2],
  ['the next card ends it', 'ATOMIC_POSITIONS\nH 0 0 0\nK_POINTS automatic\n4 4 4 0 0 0\n', 1],
  ['a namelist ends it', 'ATOMIC_POSITIONS\nH 0 0 0\n&IONS\na = 1, b = 2, c\n/\n', 1],
  ['no card', '&CONTROL\n/\nATOMIC_SPECIES\nH 1.008 H.UPF x\n', 0],
  ['the word in a comment', '! ATOMIC_POSITIONS\nH 0 0 0\n', 0],
  ['two coordinates are no atom', 'ATOMIC_POSITIONS\nH 0 0\n', 0],
  ['nothing', '', 0],
])('%s', (_, content, atoms) => {
  expect(countAtoms(content)).toBe(atoms)
})
