const PLAIN_EVERY_S = 15

/**
 * Reports a slow task on stderr: as a counter of seconds on a terminal, otherwise as a plain line now and then, so that
 * a log file or a pipe never contains cursor codes.
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
