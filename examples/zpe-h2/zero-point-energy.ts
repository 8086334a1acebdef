import { type Atom, atomsOf, type PwInput, parsePwInput, speciesOf, type Vector, withAtoms } from './pw-input.ts'
import { type Calculation, finalAtoms, forcesOn, totalEnergyRy, versionOf } from './pw-output.ts'
import { QeError } from './qe-error.ts'

/** The payload of S1's clients. */
export interface ZpePayload {
  /** An input of pw.x. */
  content: string
  /** The atoms that vibrate, counted from 0. */
  mobile_indices: number[]
  use_environ?: boolean
}

export interface ZpeResult {
  zpe_ev: number
  freqs_cm: number[]
  bond_length_angstrom: number
  force_constant_ev_per_angstrom2: number
  total_energy_ry: number
  displacement_angstrom: number
  mobile_indices: number[]
}

export interface ZpeOutcome {
  result: ZpeResult
  summary_text: string
  freqs_csv: string
  qe_version: string
}

/** Runs pw.x on an input and returns its output. */
export type Pw = (calculation: Calculation, input: PwInput) => Promise<string>

/** Small enough for a linear force, large enough for a force above the noise. */
export const DISPLACEMENT_ANGSTROM = 0.01

// CODATA 2018
const EV_PER_RY = 13.605693122994
const ANGSTROM_PER_BOHR = 0.529177210903
const EV_PER_ANGSTROM = EV_PER_RY / ANGSTROM_PER_BOHR
const J_PER_EV = 1.602176634e-19
const KG_PER_AMU = 1.6605390666e-27
const H_BAR_J_S = 1.054571817e-34
const C_CM_PER_S = 2.99792458e10

export async function zeroPointEnergy(
  payload: ZpePayload,
  pw: Pw,
  progress: (step: string, percent: number) => void = () => {},
): Promise<ZpeOutcome> {
  const input = parsePwInput(payload.content)
  const reducedMassAmu = reducedMass(input, payload)

  progress('relax', 0)
  const relaxed = await pw('relax', input)
  const atoms = finalAtoms(relaxed)
  const [axis, bondLength] = bondOf(atoms)

  /** The force on the second atom along the bond, in eV/Å, after a move by this distance along it. */
  async function pull(distance: number): Promise<number> {
    const moved = atoms.map((atom, i) => (i === 1 ? { ...atom, at: shift(atom.at, axis, distance) } : atom))
    const [, force] = forcesOn(await pw('scf', withAtoms(input, moved)))
    if (force === undefined) throw new QeError('QE_PARSE_ERROR', 'The output has no force on the second atom')
    return dot(force, axis) * EV_PER_ANGSTROM
  }

  progress('stretch', 50)
  const stretched = await pull(DISPLACEMENT_ANGSTROM)
  progress('compress', 75)
  const compressed = await pull(-DISPLACEMENT_ANGSTROM)
  const forceConstant = -(stretched - compressed) / (2 * DISPLACEMENT_ANGSTROM)
  const { wavenumberCm, zpeEv } = vibration(forceConstant, reducedMassAmu)
  const result: ZpeResult = {
    zpe_ev: zpeEv,
    freqs_cm: [wavenumberCm],
    bond_length_angstrom: bondLength,
    force_constant_ev_per_angstrom2: forceConstant,
    total_energy_ry: totalEnergyRy(relaxed),
    displacement_angstrom: DISPLACEMENT_ANGSTROM,
    mobile_indices: payload.mobile_indices,
  }
  return { result, summary_text: summary(result), freqs_csv: freqsCsv(result), qe_version: versionOf(relaxed) }
}

/** Two mobile atoms have one vibration, the stretch. Only that is calculated here. */
function reducedMass(input: PwInput, { mobile_indices, use_environ }: ZpePayload): number {
  if (use_environ)
    throw new QeError('QE_INPUT_ERROR', 'use_environ needs a pw.x with Environ, which this worker has not')
  const [first, second, ...more] = atomsOf(input)
  if (first === undefined || second === undefined || more.length > 0) {
    throw new QeError('QE_INPUT_ERROR', 'This worker calculates molecules of two atoms only')
  }
  if (String([...mobile_indices].sort()) !== '0,1') {
    throw new QeError('QE_INPUT_ERROR', 'mobile_indices must be [0, 1]: both atoms of the molecule vibrate')
  }
  const species = speciesOf(input)
  const [a, b] = [first, second].map(({ symbol }) => {
    const massAmu = species.get(symbol)?.massAmu
    if (massAmu === undefined) throw new QeError('QE_INPUT_ERROR', `ATOMIC_SPECIES does not name ${symbol}`)
    return massAmu
  }) as [number, number]
  return (a * b) / (a + b)
}

function bondOf([first, second]: readonly Atom[]): [axis: Vector, length: number] {
  if (first === undefined || second === undefined) throw new QeError('QE_PARSE_ERROR', 'The output lacks an atom')
  const [x, y, z] = first.at
  const bond = shift(second.at, [x, y, z], -1)
  const length = Math.sqrt(dot(bond, bond))
  return [shift([0, 0, 0], bond, 1 / length), length]
}

function shift([x, y, z]: Vector, [dx, dy, dz]: Vector, by: number): Vector {
  return [x + dx * by, y + dy * by, z + dz * by]
}

function dot([ax, ay, az]: Vector, [bx, by, bz]: Vector): number {
  return ax * bx + ay * by + az * bz
}

/** The vibration of a harmonic oscillator. */
export function vibration(forceConstantEv: number, massAmu: number): { wavenumberCm: number; zpeEv: number } {
  if (!(forceConstantEv > 0)) throw new QeError('QE_PARSE_ERROR', `The bond does not pull back: k = ${forceConstantEv}`)
  const omega = Math.sqrt((forceConstantEv * J_PER_EV * 1e20) / (massAmu * KG_PER_AMU))
  return { wavenumberCm: omega / (2 * Math.PI * C_CM_PER_S), zpeEv: (H_BAR_J_S * omega) / 2 / J_PER_EV }
}

function summary(result: ZpeResult): string {
  const [wavenumber = 0] = result.freqs_cm
  return [
    `Zero-point energy  ${result.zpe_ev.toFixed(4)} eV`,
    `Stretch            ${wavenumber.toFixed(1)} cm^-1`,
    `Bond length        ${result.bond_length_angstrom.toFixed(4)} Å`,
    `Total energy       ${result.total_energy_ry.toFixed(8)} Ry`,
    '',
  ].join('\n')
}

function freqsCsv({ freqs_cm, zpe_ev }: ZpeResult): string {
  const rows = freqs_cm.map((wavenumber, i) => `${i},${wavenumber.toFixed(3)},${(zpe_ev * 2 * 1000).toFixed(3)}\n`)
  return `mode,frequency_cm-1,energy_mev\n${rows.join('')}`
}
