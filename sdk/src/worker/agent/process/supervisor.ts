import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, constants } from 'node:fs'
import { Writable } from 'node:stream'
import { sleep } from '../../../world.ts'
import { elapsedMs, type Mark } from '../../loop/clocks.ts'
import { nameOf, openRegular } from '../output/written-files.ts'
import { machineClocks, nodeWorld } from '../world.ts'
import { makeCgroup } from './cgroup.ts'
import { isAlive, killRun, type Prey, terminateRun } from './kill.ts'
import { noteProgram } from './program-note.ts'
import { type EndedBy, eachLine, LAST_PART, type Notice, type Order, type SpawnOrder } from './supervision.ts'

/** How often it looks at the clocks: timers alone do not notice that the machine slept. */
const TICK_MS = 100
/** For a program whose agent is gone: nobody will ask for its result. */
const ORPHAN_GRACE_MS = 1_000

/**
 * Joins the run's control group, if there is one, before anything of the program runs. Until it is noted, this is found by
 * the marker; it ends by itself when the supervisor, which lets it go on, is killed before that.
 */
const ENTER = '[ -z "$0" ] || echo 0 > "$0/cgroup.procs"; read -r go <&4 || exit; exec /bin/sh -c "$1" 4<&-'

/**
 * A process of its own beside each program. It outlives an agent that was killed and watches the clock for one that was
 * stopped, so that a program never runs on when its job may be given to somebody else.
 */
export function supervise(): void {
  // Ctrl-C and the like are the agent's to judge; its end is heard as the end of stdin.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
  process.stdout.on('error', () => {})
  const run = new SupervisedRun()
  eachLine<Order>(process.stdin, (order) => {
    if ('spawn' in order) run.begin(order.spawn)
    else if ('confirmed' in order) run.confirm(order.confirmed)
    else run.stop('agent', order.stop.graceMs)
  })
  process.stdin.on('end', () => run.orphan())
  process.stdin.on('error', () => run.orphan())
}

class SupervisedRun {
  #child: ChildProcess | null = null
  #prey: Prey | null = null
  #confirmed: Mark = {}
  #aloneMs = 0
  #by: EndedBy = 'itself'
  #killing: Promise<unknown> | null = null

  begin(order: SpawnOrder): void {
    this.#confirmed = order.confirmed
    this.#aloneMs = order.aloneMs
    // It took too long to come to this: the machine slept, or the agent was stopped.
    if (this.#aloneForMs() >= this.#aloneMs * (1 - LAST_PART)) {
      tell({ ended: { by: 'deadline', code: null, signal: null } })
      process.exit()
    }
    const cgroup = makeCgroup()
    this.#prey = { group: null, leaseId: order.leaseId, cgroup }
    const child = start(order, cgroup?.folder ?? '')
    this.#child = child
    const fail = (error: unknown) => {
      cgroup?.remove()
      tell({ failed: error instanceof Error ? error.message : String(error) })
      process.exit()
    }
    child.on('error', fail)
    if (child.pid === undefined) return
    this.#prey.group = child.pid
    try {
      tell({ started: noteProgram(order.noteFile, child.pid, cgroup) })
    } catch (error) {
      fail(error)
    }
    letGo(child)
    child.on('exit', (code, signal) => void this.#conclude(code, signal))
    this.#watch()
  }

  /** Once it was told to stop its time runs: nothing gives it more. */
  confirm(sent: Mark): void {
    if (this.#by === 'itself') this.#confirmed = sent
  }

  /** Politely first, then not. */
  stop(by: EndedBy, graceMs: number): void {
    this.#ask(by)
    nodeWorld.after(graceMs, () => this.#kill())
  }

  orphan(): void {
    if (this.#child === null) process.exit()
    this.stop('orphaned', ORPHAN_GRACE_MS)
  }

  #watch(): void {
    const aloneMs = this.#aloneForMs()
    if (aloneMs >= this.#aloneMs * (1 - LAST_PART)) this.#ask('deadline')
    if (aloneMs >= this.#aloneMs) this.#kill()
    else nodeWorld.after(TICK_MS, () => this.#watch())
  }

  #aloneForMs(): number {
    return elapsedMs(this.#confirmed, machineClocks())
  }

  #ask(by: EndedBy): void {
    if (this.#prey === null || this.#by !== 'itself') return
    this.#by = by
    terminateRun(this.#prey)
  }

  #kill(): void {
    if (this.#prey !== null) this.#killing ??= killRun(this.#prey, nodeWorld)
  }

  /** A run is over when nothing of it lives any more, so what the program left behind goes with it. */
  async #conclude(code: number | null, signal: string | null): Promise<void> {
    if (this.#prey === null) return
    // Asked to stop, the shell that began the program is gone at once; the program has its time all the same.
    while (this.#by !== 'itself' && this.#killing === null && isAlive(this.#prey)) await sleep(nodeWorld, TICK_MS)
    await this.#killing
    await killRun(this.#prey, nodeWorld)
    tell({ ended: { by: this.#by, code, signal } })
    process.exit()
  }
}

function start(order: SpawnOrder, cgroupFolder: string): ChildProcess {
  const fds = [
    inPlace(order.payloadFile, constants.O_RDONLY),
    ...[order.stdoutFile, order.stderrFile, order.progressFile].map((file) => inPlace(file, APPEND)),
  ]
  try {
    return spawn('/bin/sh', ['-c', ENTER, cgroupFolder, order.command], {
      cwd: order.folder,
      env: order.env,
      // A group and a session of its own, to be killed as a whole.
      detached: true,
      stdio: [...fds, 'pipe'],
    })
  } finally {
    for (const fd of fds) closeSync(fd)
  }
}

/** As the agent has made it: the program of another run may be at the same folders. */
function inPlace(path: string, access: number): number {
  const fd = openRegular(path, access)
  if (fd === null) throw new Error(`${nameOf(path)} is gone`)
  return fd
}

const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT

function letGo({ stdio: [, , , , gate] }: ChildProcess): void {
  if (!(gate instanceof Writable)) throw new Error('The program could not be started')
  // It may have been killed already.
  gate.on('error', () => {})
  gate.end('\n')
}

function tell(notice: Notice): void {
  process.stdout.write(`${JSON.stringify(notice)}\n`)
}
