import { type ExecFileException, execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type PwInput, withControl, writePwInput } from './pw-input.ts'
import { type Calculation, type PwEnd, requireSuccess } from './pw-output.ts'
import { QeError } from './qe-error.ts'

export interface PwOptions {
  /** The folder of this calculation alone. pw.x writes only into it. */
  folder: string
  /** Ends pw.x immediately. Its reason may be a QeError. */
  signal: AbortSignal
  program?: string
  pseudoDir?: string
}

/** The paths of Debian's packages. */
const PROGRAM = 'pw.x'
const PSEUDO_DIR = '/usr/share/espresso/pseudo'
const OUTPUT_BYTES_MAX = 64 * 1024 * 1024

/** Runs pw.x on one core. Returns its output if the calculation succeeded, otherwise throws a QeError. */
export async function runPw(calculation: Calculation, input: PwInput, options: PwOptions): Promise<string> {
  const { folder, signal, pseudoDir = PSEUDO_DIR } = options
  // These values replace the submitter's, who must not choose them.
  const own = { calculation, prefix: 'zpe', outdir: './', wfcdir: './', pseudo_dir: pseudoDir }
  const quoted = Object.fromEntries(Object.entries(own).map(([variable, value]) => [variable, `'${value}'`]))
  const ours = { ...quoted, restart_mode: "'from_scratch'", tprnfor: '.true.' }
  const file = join(folder, 'pw.in')
  await writeFile(file, writePwInput(withControl(input, ours)))
  const end = await run(options, ['-in', file])
  if (signal.aborted) {
    throw signal.reason instanceof QeError ? signal.reason : new QeError('QE_TIME_LIMIT', 'pw.x took too long')
  }
  requireSuccess(end, calculation)
  return end.stdout
}

function run({ folder, signal, program = PROGRAM }: PwOptions, args: string[]): Promise<PwEnd> {
  const { PATH = '', HOME = '', LD_LIBRARY_PATH } = process.env
  // Nothing else of this process's environment is passed on, because it contains a token. On a busy machine threads only wait
  // for each other, and without `isolated` Open MPI starts a daemon beside each pw.x, which survives when pw.x is killed.
  const env = {
    PATH,
    HOME,
    ...(LD_LIBRARY_PATH === undefined ? {} : { LD_LIBRARY_PATH }),
    TMPDIR: folder,
    OMP_NUM_THREADS: '1',
    OMPI_MCA_ess_singleton_isolated: '1',
  }
  const options = { cwd: folder, env, signal, killSignal: 'SIGKILL', maxBuffer: OUTPUT_BYTES_MAX } as const
  return new Promise((resolve, reject) => {
    const child = execFile(program, args, options, (error, stdout, stderr) => {
      if (isMissing(error)) reject(new QeError('QE_NOT_FOUND', `${program} is not there. ${ADVICE}`))
      else resolve({ exitCode: child.exitCode, signal: child.signalCode, stdout, stderr })
    })
  })
}

const ADVICE = 'On Debian: apt-get install quantum-espresso quantum-espresso-data'

function isMissing(error: ExecFileException | null): boolean {
  return error?.code === 'ENOENT' || error?.code === 'EACCES'
}
