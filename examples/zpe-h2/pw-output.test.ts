import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import {
  type Calculation,
  finalAtoms,
  forcesOn,
  type PwEnd,
  requireSuccess,
  totalEnergyRy,
  versionOf,
} from './pw-output.ts'

const recorded = (name: string) => readFileSync(new URL(`recorded/${name}`, import.meta.url), 'utf8')
const ended = (changes: Partial<PwEnd>): PwEnd => ({ exitCode: 0, signal: null, stdout: '', stderr: '', ...changes })
/** pw.x writes this to the end of stderr after any error. */
const ABORTED = 'MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n'

describe('the results of pw.x', () => {
  test.each(['pbe-relax', 'lda-relax'])('%s is a success', (name) => {
    expect(() => requireSuccess(ended({ stdout: recorded(`${name}.out`) }), 'relax')).not.toThrow()
  })

  test.each(['pbe-stretch', 'pbe-compress', 'lda-stretch', 'lda-compress', 'high-verbosity'])(
    '%s is a success',
    (name) => {
      expect(() => requireSuccess(ended({ stdout: recorded(`${name}.out`) }), 'scf')).not.toThrow()
    },
  )

  test('relaxed atoms, energy and version are read', () => {
    const stdout = recorded('pbe-relax.out')
    expect(finalAtoms(stdout)).toEqual([
      { symbol: 'H', at: [3.5, 3.5, 3.1244782713] },
      { symbol: 'H', at: [3.5, 3.5, 3.8755217287] },
    ])
    expect(totalEnergyRy(stdout)).toBe(-2.3331615)
    expect(versionOf(stdout)).toBe('6.7MaX')
  })

  test('forces are read from the first block, not from the parts after it', () => {
    expect(forcesOn(recorded('pbe-stretch.out'))).toEqual([
      [0, 0, 0.01296774],
      [0, 0, -0.01296774],
    ])
    expect(forcesOn(recorded('high-verbosity.out'))).toEqual([
      [0, 0, -0.0013998],
      [0, 0, 0.0013998],
    ])
  })

  test.each([
    ['forces', forcesOn],
    ['final coordinates', finalAtoms],
    ['total energy', totalEnergyRy],
    ['version', versionOf],
  ])('an output without %s cannot be read', (_, read) => {
    expect(() => read('JOB DONE.')).toThrow(expect.objectContaining({ code: 'QE_PARSE_ERROR' }))
  })

  test('a force that is too large for its column cannot be read', () => {
    const stdout = recorded('pbe-stretch.out').replace('-0.01296774', '***********')
    expect(() => forcesOn(stdout)).toThrow(expect.objectContaining({ code: 'QE_PARSE_ERROR' }))
  })
})

describe('the failures of pw.x', () => {
  const FAILURES: [name: string, exitCode: number, code: string, message: RegExp][] = [
    ['scf-not-converged', 2, 'QE_SCF_NOT_CONVERGED', /convergence NOT achieved after {3}2 iterations/],
    ['relax-not-converged', 3, 'QE_RELAX_NOT_CONVERGED', /maximum number of steps/],
    ['time-limit', 2, 'QE_TIME_LIMIT', /max_seconds/],
    ['pseudo-missing', 1, 'QE_PSEUDO_MISSING', /readpp: file H\.none\.UPF not found/],
    ['bad-namelist', 1, 'QE_INPUT_ERROR', /read_namelists: .*bad line in namelist &system/],
    ['bad-card', 1, 'QE_INPUT_ERROR', /read_cards: unknown option for ATOMIC_POSITION/],
    ['overlap', 1, 'QE_RUNTIME_ERROR', /check_atoms: atoms # +1 and # +2 overlap/],
  ]
  test.each(FAILURES)('%s is recognised', (name, exitCode, code, message) => {
    const stderr = exitCode === 1 ? ABORTED : `STOP ${exitCode}\n`
    expectFailure({ exitCode, stdout: recorded(`${name}.out`), stderr }, code, message)
  })

  test('a failed start of Open MPI is recognised', () => {
    expectFailure({ exitCode: 1, stderr: recorded('mpi-error.err') }, 'QE_MPI_ERROR', /MPI_ERRORS_ARE_FATAL/)
  })

  test('an end by a signal is recognised, whatever pw.x had printed', () => {
    const stdout = recorded('pbe-relax.out')
    expectFailure({ exitCode: null, signal: 'SIGKILL', stdout }, 'QE_KILLED', /SIGKILL/)
  })

  test('an unexplained exit code is a runtime error', () => {
    expectFailure({ exitCode: 1, stderr: ABORTED }, 'QE_RUNTIME_ERROR', /exited with code 1: .*errorcode 1/)
  })

  const good = recorded('pbe-relax.out')
  const LIES: [what: string, stdout: string, calculation: Calculation, code: string][] = [
    ['JOB DONE is missing', good.replace('JOB DONE', ''), 'relax', 'QE_PARSE_ERROR'],
    ['no energy converged', good.replaceAll(/^!/gm, ' '), 'relax', 'QE_PARSE_ERROR'],
    [
      'one cycle did not converge',
      good.replace('convergence has been achieved in', 'convergence NOT achieved after'),
      'relax',
      'QE_SCF_NOT_CONVERGED',
    ],
    ['the relaxation has no end', good.replace('End final coordinates', ''), 'relax', 'QE_RELAX_NOT_CONVERGED'],
  ]
  test.each(LIES)('exit code 0 is not a success if %s', (_, stdout, calculation, code) => {
    expectFailure({ stdout }, code, /./, calculation)
  })

  function expectFailure(
    changes: Partial<PwEnd>,
    code: string,
    message: RegExp,
    calculation: Calculation = 'relax',
  ): void {
    const expected = expect.objectContaining({ name: 'QeError', code, message: expect.stringMatching(message) })
    expect(() => requireSuccess(ended(changes), calculation)).toThrow(expected)
  }
})
