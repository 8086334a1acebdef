import { spawn } from 'node:child_process'

// Reads pids, one per line; the last one counts, and 0 means none. The end of its input means that the owner has ended in any
// way. The guard then stops the service, if necessary with SIGKILL, and removes its folder. It is a shell script because a Node
// process would cost 45 MB and 50 ms for each service.
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
  /** A negative number means a process group, as in kill(2). */
  watch(pid: number): void
  /** Resolves when the folder is removed. */
  release(): Promise<void>
}

/** Stops the watched process and removes `folder`, even if this process is killed with -9. */
export function startGuard(folder: string, signal: 'QUIT' | 'TERM'): Guard {
  // The guard has its own session, so that Ctrl-C in the terminal does not end it before its owner.
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
