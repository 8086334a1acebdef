/** The error codes of a calculation, which its submitter reads. S1 itself names the last one. */
export type QeErrorCode =
  | 'QE_NOT_FOUND'
  | 'QE_PSEUDO_MISSING'
  | 'QE_INPUT_ERROR'
  | 'QE_SCF_NOT_CONVERGED'
  | 'QE_RELAX_NOT_CONVERGED'
  | 'QE_TIME_LIMIT'
  | 'QE_MPI_ERROR'
  | 'QE_KILLED'
  | 'QE_PARSE_ERROR'
  | 'QE_RUNTIME_ERROR'

export class QeError extends Error {
  override readonly name = 'QeError'
  readonly code: QeErrorCode

  constructor(code: QeErrorCode, message: string) {
    super(message)
    this.code = code
  }
}
