import { spawn } from 'node:child_process'

// Reads pids, one a line; the last one counts, 0 is none. The end of its input means that the owner is gone, however
// it went: the service is stopped, hard if it must be, and its folder removed. It is a shell because a Node process
// would cost 45 MB and 50 ms for each service.
const SCRIPT = `
trap '' INT TERM HUP
target=0
while read -r line; do target=$line; done
if [ "$target" != 0 ]; then
  kill -s "$2" -- "$target" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    kill -s 0 -- "$target" 2>/dev/null || break
    sleep 0.1
  done
  kill -s KILL -- "$target" 2>/dev/null
fi
[ -z "$1" ] || rm -rf -- "$1" || { sleep 0.5; rm -rf -- "$1"; }
`

export type Guard = {
  /** A negative number stands for a process group, as with kill(2). */
  watch(pid: number): void
  /** Settles when the folder is gone. */
  release(): Promise<void>
}

/** Stops what it `watch`es and removes `folder` even when this process is killed with -9. */
export function startGuard(folder: string, signal: 'QUIT' | 'TERM'): Guard {
  // A session of its own: Ctrl-C in the terminal must not end the guard before its owner.
  const child = spawn('/bin/sh', ['-c', SCRIPT, 'guard', folder, signal], {
    detached: true,
    cwd: '/',
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  child.stdin.on('error', () => {})
  child.unref()
  return {
    watch: (pid) => void child.stdin.write(`${pid}\n`),
    release: () => {
      child.ref()
      child.stdin.end('0\n')
      return ended
    },
  }
}
