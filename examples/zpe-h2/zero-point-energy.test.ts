import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { runPw } from './pw.ts'
import { atomsOf, type PwInput } from './pw-input.ts'
import type { Calculation } from './pw-output.ts'
import { vibration, type ZpePayload, zeroPointEnergy } from './zero-point-energy.ts'

const h2 = readFileSync(new URL('h2.in', import.meta.url), 'utf8')
const recorded = (name: string) => readFileSync(new URL(`recorded/${name}`, import.meta.url), 'utf8')
const payload = (changes: Partial<ZpePayload> = {}) => ({ content: h2, mobile_indices: [0, 1], ...changes })

/** Returns recorded outputs, and collects the inputs. */
function replay(method: string) {
  const asked: { calculation: Calculation; input: PwInput }[] = []
  const outputs = ['relax', 'stretch', 'compress'].map((step) => recorded(`${method}-${step}.out`))
  const pw = async (calculation: Calculation, input: PwInput) => {
    asked.push({ calculation, input })
    return outputs.shift() ?? ''
  }
  return { pw, asked }
}

test('H2 with PBE has 0.2672 eV', async () => {
  const { pw, asked } = replay('pbe')
  const steps: unknown[] = []
  const outcome = await zeroPointEnergy(payload(), pw, (...step) => steps.push(step))
  expect(outcome.result.zpe_ev).toBeCloseTo(0.2672, 4)
  expect(outcome.result.freqs_cm[0]).toBeCloseTo(4310.4, 1)
  expect(outcome.result.bond_length_angstrom).toBeCloseTo(0.751, 4)
  expect(outcome.qe_version).toBe('6.7MaX')
  expect(outcome.summary_text).toContain('0.2672 eV')
  expect(outcome.freqs_csv).toBe('mode,frequency_cm-1,energy_mev\n0,4310.395,534.421\n')
  expect(steps).toEqual([
    ['relax', 0],
    ['stretch', 50],
    ['compress', 75],
  ])

  expect(asked.map(({ calculation }) => calculation)).toEqual(['relax', 'scf', 'scf'])
  const second = asked.map(({ input }) => atomsOf(input)[1]?.at[2])
  expect(second).toEqual([3.875, 3.8855217287, 3.8655217287])
  expect(asked.map(({ input }) => atomsOf(input)[0]?.at[2])).toEqual([3.125, 3.1244782713, 3.1244782713])
})

test('H2 with LDA has 0.2585 eV, which is outside of the required range', async () => {
  const { result } = await zeroPointEnergy(payload(), replay('lda').pw)
  expect(result.zpe_ev).toBeCloseTo(0.2585, 4)
  expect(result.zpe_ev).not.toBeGreaterThanOrEqual(0.26)
})

test('a harmonic oscillator has the textbook wavenumber', () => {
  // Textbooks give HCl k = 516 N/m and a reduced mass of 0.980 u, which makes about 2990 cm^-1.
  const { wavenumberCm, zpeEv } = vibration(516 / 16.02176634, 0.9801)
  expect(wavenumberCm).toBeCloseTo(2990, -1)
  expect(zpeEv).toBeCloseTo(wavenumberCm / 8065.544 / 2, 6)
})

test.each([
  ['three atoms', { content: h2.replace('K_POINTS', '  H 0 0 0\nK_POINTS') }, /two atoms/],
  ['a fixed atom', { mobile_indices: [1] }, /mobile_indices/],
  ['Environ', { use_environ: true }, /Environ/],
  ['an unnamed species', { content: h2.replace('  H 3.5 3.5 3.125', '  He 3.5 3.5 3.125') }, /does not name He/],
])('refused before pw.x runs: %s', async (_, changes, message) => {
  const { pw, asked } = replay('pbe')
  const refusal = expect.objectContaining({ code: 'QE_INPUT_ERROR', message: expect.stringMatching(message) })
  await expect(zeroPointEnergy(payload(changes), pw)).rejects.toThrow(refusal)
  expect(asked).toEqual([])
})

test('a repulsive bond has no vibration', async () => {
  const outputs = ['relax', 'compress', 'stretch'].map((step) => recorded(`pbe-${step}.out`))
  const backwards = async () => outputs.shift() ?? ''
  await expect(zeroPointEnergy(payload(), backwards)).rejects.toThrow(
    expect.objectContaining({ code: 'QE_PARSE_ERROR' }),
  )
})

test('a missing pw.x is reported', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'zpe-h2-'))
  const program = join(folder, 'pw.x')
  const pw = (calculation: Calculation, input: PwInput) =>
    runPw(calculation, input, { folder, signal: new AbortController().signal, program })
  try {
    await expect(zeroPointEnergy(payload(), pw)).rejects.toThrow(expect.objectContaining({ code: 'QE_NOT_FOUND' }))
  } finally {
    rmSync(folder, { recursive: true })
  }
})
