import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { atomsOf, parsePwInput, speciesOf, withAtoms, withControl, writePwInput } from './pw-input.ts'

const h2 = readFileSync(new URL('h2.in', import.meta.url), 'utf8')

test('the input of the example is understood', () => {
  const input = parsePwInput(h2)
  expect([...input.namelists.keys()]).toEqual(['CONTROL', 'SYSTEM', 'ELECTRONS', 'IONS'])
  expect(Object.fromEntries(input.namelists.get('SYSTEM') ?? [])).toEqual({
    ibrav: '1',
    a: '7.0',
    nat: '2',
    ntyp: '1',
    ecutwfc: '46',
    ecutrho: '201',
  })
  expect(atomsOf(input)).toEqual([
    { symbol: 'H', at: [3.5, 3.5, 3.125] },
    { symbol: 'H', at: [3.5, 3.5, 3.875] },
  ])
  expect(speciesOf(input)).toEqual(new Map([['H', { massAmu: 1.008, pseudopotential: 'H.pbe-kjpaw.UPF' }]]))
})

test('a written input is read as the same input', () => {
  const input = parsePwInput(h2)
  expect(parsePwInput(writePwInput(input))).toEqual(input)
})

test('comments, braces, commas, quotes and CRLF are read as in Fortran', () => {
  const input = parsePwInput(
    [
      '&CONTROL',
      ` title = 'a / b ! c' , outdir="/x" ! said so`,
      ' celldm(1)=13.2 nstep=7,',
      '/ ',
      'K_POINTS {gamma}',
    ].join('\r\n'),
  )
  expect(Object.fromEntries(input.namelists.get('CONTROL') ?? [])).toEqual({
    title: "'a / b ! c'",
    outdir: '"/x"',
    'celldm(1)': '13.2',
    nstep: '7',
  })
  expect(input.cards).toEqual([{ name: 'K_POINTS', option: 'gamma', lines: [] }])
})

test('values and atoms replace the old ones, and &CONTROL comes first', () => {
  const moved = withAtoms(parsePwInput(h2), [{ symbol: 'H', at: [0, 0, 1 / 3] }])
  expect(atomsOf(moved)).toEqual([{ symbol: 'H', at: [0, 0, 0.3333333333] }])
  const [first, second] = ['&SYSTEM\n nat = 2\n/\n', '&CONTROL\n outdir = "/etc"\n/\n']
  for (const text of [first + second, first]) {
    const written = writePwInput(withControl(parsePwInput(text), { outdir: "'./'" }))
    expect(written).toBe("&CONTROL\n  outdir = './'\n/\n&SYSTEM\n  nat = 2\n/\n")
  }
})

test.each([
  ['a substring of a variable', "&CONTROL\n outdir(1:4) = '/etc'\n/\n", /Not an assignment: outdir\(1:4\)/],
  ['a quote that does not close', "&CONTROL\n outdir = './\n/\n", /Not an assignment|does not end/],
  ['text before any card', 'hello\n', /Neither a namelist nor a card: hello/],
  ['a namelist without an end', '&CONTROL\n nstep = 1\n', /does not end/],
])('refused: %s', (_, text, message) => {
  expect(() => parsePwInput(text)).toThrow(
    expect.objectContaining({ code: 'QE_INPUT_ERROR', message: expect.stringMatching(message) }),
  )
})

test.each([
  ['positions in other units', h2.replace('angstrom', 'bohr'), /angstrom/],
  ['an invalid position', h2.replace('3.875', 'there'), /Not the position/],
  ['no positions', h2.replace(/ATOMIC_POSITIONS.*?K_/s, 'K_'), /no ATOMIC_POSITIONS/],
])('refused: %s', (_, text, message) => {
  expect(() => atomsOf(parsePwInput(text))).toThrow(message)
})

test.each(['../../etc/passwd', '/etc/passwd', '.hidden', ''])('refused: the pseudopotential %j', (file) => {
  expect(() => speciesOf(parsePwInput(h2.replace('H.pbe-kjpaw.UPF', file)))).toThrow(/plain file name/)
})
