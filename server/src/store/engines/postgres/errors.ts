/** Classifies errors of PostgreSQL by their SQLSTATE, or by the code or message of the driver. */

export function sqlState(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : ''
}

/** 22xxx: a value the engine cannot hold; 23xxx: a constraint; 54xxx: a limit. */
export function isBadValue(error: unknown): boolean {
  return /^(22|23|54)...$/.test(sqlState(error)) && !isTakenKey(error)
}

/** Deadlock, serialization failure, lock timeout, a taken key: nothing was committed, and another try may succeed. */
export function isContention(error: unknown): boolean {
  return /^(40...|55P03)$/.test(sqlState(error)) || isTakenKey(error)
}

/** The next try of the command finds the job of the key. */
export function isTakenKey(error: unknown): boolean {
  return error instanceof Error && 'constraint' in error && error.constraint === 'idempotency_keys_pkey'
}

/**
 * 53100, or the message of the operating system where PostgreSQL has another code. Nothing was committed: a commit without room
 * on the disk ends the whole server.
 */
export function isDiskFull(error: unknown): boolean {
  if (sqlState(error) === '53100') return true
  return error instanceof Error && /No space left on device|Disk quota exceeded/.test(error.message)
}

/** Errors of pg itself have no code. The second one means that the connection broke between two statements. */
const LOST =
  /Connection terminated|is not queryable|timeout exceeded when trying to connect|timeout expired|Query read timeout/

/**
 * The server has become a standby. It refuses writes (25006), and also `BEGIN … READ WRITE`, which fails in the check of that
 * setting (0A000 "cannot set transaction read-write mode during recovery").
 */
export function isReadOnly(error: unknown): boolean {
  const code = sqlState(error)
  if (code !== '0A000') return code === '25006'
  return error instanceof Error && 'routine' in error && error.routine === 'call_bool_check_hook'
}

/**
 * Broken or refused connections, a server that stops or starts (08xxx, 57Pxx, 53300) or has closed the session (25P03), or one
 * that no longer accepts writes.
 */
export function isConnectionLoss(error: unknown): boolean {
  const code = sqlState(error)
  if (isReadOnly(error) || /^(08...|57P0[1-35]|53300|25P03)$/.test(code)) return true
  if (/^(ECONN[A-Z]+|EPIPE|ETIMEDOUT|ENOENT|ENOTFOUND|EAI_AGAIN|E(HOST|NET)(UNREACH|DOWN))$/.test(code)) return true
  return error instanceof Error && LOST.test(error.message)
}
