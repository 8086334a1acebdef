import { type Atom, parseAtom, type Vector } from './pw-input.ts'
import { QeError } from './qe-error.ts'

/** The end of a pw.x process, and its output. */
export interface PwEnd {
  exitCode: number | null
  signal: string | null
  stdout: string
  stderr: string
}

export type Calculation = 'relax' | 'scf'

const EXIT_NOT_CONVERGED = 2
const EXIT_RELAX_NOT_CONVERGED = 3

/** Throws unless the calculation succeeded. pw.x prints JOB DONE after a failure to converge, too. */
export function requireSuccess(end: PwEnd, calculation: Calculation): void {
  const { exitCode, signal, stdout, stderr } = end
  if (signal !== null) throw new QeError('QE_KILLED', `pw.x was ended by ${signal}`)
  if (stdout.includes('Maximum CPU time exceeded')) throw new QeError('QE_TIME_LIMIT', 'pw.x reached max_seconds')
  const error = /Error in routine\s+(\S+) \((-?\d+)\):\s*\n\s*(.*)/.exec(stdout)
  if (error !== null) {
    const [, routine = '', , message = ''] = error
    throw new QeError(codeOfRoutine(routine), `${routine}: ${message.trim()}`)
  }
  // An Open MPI that cannot start ends pw.x before it prints its name. MPI_ABORT alone appears after any error.
  if (!stdout.includes('Program PWSCF') && /MPI_INIT|MPI_Init\b|orte_init|opal_init|PMIX ERROR/.test(stderr)) {
    throw new QeError('QE_MPI_ERROR', lastLines(stderr))
  }
  if (exitCode === EXIT_NOT_CONVERGED || stdout.includes('convergence NOT achieved')) {
    throw new QeError('QE_SCF_NOT_CONVERGED', saidOf(stdout, /convergence NOT achieved.*/) ?? 'pw.x exited with code 2')
  }
  if (exitCode === EXIT_RELAX_NOT_CONVERGED) {
    const said = saidOf(stdout, /The maximum number of steps has been reached\./)
    throw new QeError('QE_RELAX_NOT_CONVERGED', said ?? 'pw.x exited with code 3')
  }
  if (exitCode !== 0) throw new QeError('QE_RUNTIME_ERROR', `pw.x exited with code ${exitCode}: ${lastLines(stderr)}`)
  if (!stdout.includes('JOB DONE')) throw new QeError('QE_PARSE_ERROR', 'The output ends before JOB DONE')
  if (!/^!/m.test(stdout)) throw new QeError('QE_PARSE_ERROR', 'The output has no converged total energy')
  if (calculation === 'relax' && !stdout.includes('End final coordinates')) {
    throw new QeError('QE_RELAX_NOT_CONVERGED', 'The output has no final coordinates')
  }
}

function codeOfRoutine(routine: string) {
  if (routine.startsWith('readpp')) return 'QE_PSEUDO_MISSING'
  return routine.startsWith('read_') ? 'QE_INPUT_ERROR' : 'QE_RUNTIME_ERROR'
}

function saidOf(stdout: string, pattern: RegExp): string | undefined {
  return pattern.exec(stdout)?.[0].trim()
}

function lastLines(stderr: string): string {
  const lines = stderr.split('\n').filter((line) => /\w/.test(line))
  return lines.slice(-3).join(' ').trim() || 'it said nothing'
}

/** The energy of the converged calculation, in Ry. Of a relaxation it is the last one. */
export function totalEnergyRy(stdout: string): number {
  return number([...stdout.matchAll(/^!\s+total energy\s+=\s+(\S+) Ry/gm)].at(-1)?.[1], 'total energy')
}

/** The forces in Ry/bohr, by atom. The first block has the whole force, and its parts may follow. */
export function forcesOn(stdout: string): Vector[] {
  const block = /Forces acting on atoms.*\n\s*\n((?:\s+atom\s+\d+ type\s+\d+\s+force = .*\n)+)/.exec(stdout)?.[1]
  if (block === undefined) throw new QeError('QE_PARSE_ERROR', 'The output has no forces')
  return block
    .trimEnd()
    .split('\n')
    .map((line) => {
      const [x, y, z] = (line.split('force =')[1] ?? '').trim().split(/\s+/)
      return [number(x, 'force'), number(y, 'force'), number(z, 'force')]
    })
}

export function finalAtoms(stdout: string): Atom[] {
  const [, block] = /Begin final coordinates\s+ATOMIC_POSITIONS \(angstrom\)\n(.*?)\nEnd final/s.exec(stdout) ?? []
  if (block === undefined) throw new QeError('QE_PARSE_ERROR', 'The output has no final coordinates in Å')
  return block.split('\n').map((line) => parseAtom(line))
}

export function versionOf(stdout: string): string {
  const version = /Program PWSCF v\.?(\S+) starts/.exec(stdout)?.[1]
  if (version === undefined) throw new QeError('QE_PARSE_ERROR', 'The output does not name its version')
  return version
}

function number(word: string | undefined, what: string): number {
  const value = Number(word ?? Number.NaN)
  if (Number.isNaN(value)) throw new QeError('QE_PARSE_ERROR', `The output has no readable ${what}`)
  return value
}
