import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { Trouble } from './trouble.mjs'

const FORWARDED = ['SIGINT', 'SIGTERM', 'SIGHUP']
// npm passes on a signal that the terminal or systemd has already sent to the whole group.
const SAME_SIGNAL_MS = 500
const ORPHAN_LOOK_MS = 250

const parent = process.ppid

/** npm signals only the shell above this process, and the shell ends without passing it on. Only the parent pid changes. */
function whenOrphaned(act) {
  const timer = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(timer)
    act()
  }, ORPHAN_LOOK_MS)
  timer.unref()
}

/** Runs the program in the foreground and ends like it: with the same code, or by the same signal. */
export function run(command, args, options) {
  const child = spawn(command, args, { ...options, stdio: 'inherit' })
  const lastMs = {}
  const forward = (signal) => {
    // Ctrl-C reaches the child directly, and a second SIGINT would make it stop without a graceful shutdown.
    if (signal === 'SIGINT' && process.stdin.isTTY) return
    const now = Date.now()
    if (now - (lastMs[signal] ?? 0) < SAME_SIGNAL_MS) return
    lastMs[signal] = now
    child.kill(signal)
  }
  for (const signal of FORWARDED) process.on(signal, forward)
  if (process.env.npm_lifecycle_event) whenOrphaned(() => child.kill('SIGTERM'))
  return new Promise((_, reject) => {
    child.on('error', (error) => reject(new Trouble(`${command} could not be started: ${error.message}`)))
    child.on('exit', (code, signal) => {
      if (signal === null) process.exit(code)
      for (const name of FORWARDED) process.removeListener(name, forward)
      process.exitCode = 128 + constants.signals[signal]
      process.kill(process.pid, signal)
    })
  })
}
