const PLAIN_EVERY_S = 15

/**
 * Says on stderr that something slow is under way: seconds that count up on a terminal, a plain line now and
 * then elsewhere, so that a log file or a pipe never holds cursor codes.
 */
export function progress(text) {
  const { stderr } = process
  const startedMs = Date.now()
  const seconds = () => Math.round((Date.now() - startedMs) / 1000)
  const tty = stderr.isTTY === true
  stderr.write(`${text} …\n`)
  const timer = setInterval(() => {
    if (tty) stderr.write(`\r  ${seconds()} s`)
    else if (seconds() % PLAIN_EVERY_S === 0) stderr.write(`  still at it after ${seconds()} s\n`)
  }, 1000)
  timer.unref()
  const end = (word) => {
    clearInterval(timer)
    stderr.write(`${tty ? '\r' : ''}  ${word} after ${seconds()} s\n`)
  }
  return { done: () => end('done'), failed: () => end('failed') }
}
