import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, constants } from 'node:fs'
import { Writable } from 'node:stream'
import { elapsedMs, type Mark, sleep } from '../../../world.ts'
import { nameOf, openRegular } from '../output/files.ts'
import { machineClocks, nodeWorld } from '../world.ts'
import { isAlive, killRun, noteProgram, type Prey, terminateRun } from './kill.ts'
import { makeCgroup } from './processes.ts'
import { type EndedBy, eachLine, LAST_PART, type Notice, type Order, type SpawnOrder } from './program.ts'

/** How often the clocks are read: a timer does not notice that the machine slept. */
const TICK_MS = 100
/** Short, because the result of a program without an agent is lost. */
const ORPHAN_GRACE_MS = 1_000

const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT

/**
 * Joins the run's control group, if there is one, before the program starts. Then it waits for the supervisor to write its
 * note; if the supervisor is killed before that, the shell ends.
 */
const ENTER = '[ -z "$0" ] || echo 0 > "$0/cgroup.procs"; read -r go <&4 || exit; exec /bin/sh -c "$1" 4<&-'

/**
 * Runs as a separate process beside each program. It survives a killed agent, and watches the clock for a stopped one, so that
 * no program continues when its job may be given to another worker.
 */
export function supervise(): void {
  // The agent handles signals. The end of stdin means that the agent has ended.
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
    // The deadline may have passed before the start: the machine slept, or the agent was stopped.
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

  /** After the program was told to stop, no heartbeat extends its time. */
  confirm(sent: Mark): void {
    if (this.#by === 'itself') this.#confirmed = sent
  }

  /** Sends SIGTERM, and after the grace time SIGKILL. */
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

  /** A run is over when all its processes are dead, so remaining child processes are killed. */
  async #conclude(code: number | null, signal: string | null): Promise<void> {
    if (this.#prey === null) return
    // After SIGTERM the shell ends at once, but the program still has its grace time.
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
      // Its own process group and session, which can be killed as a whole.
      detached: true,
      stdio: [...fds, 'pipe'],
    })
  } finally {
    for (const fd of fds) closeSync(fd)
  }
}

/** Opens a file that the agent made; the program of another run could have replaced it. */
function inPlace(path: string, access: number): number {
  const fd = openRegular(path, access)
  if (fd === null) throw new Error(`${nameOf(path)} is gone`)
  return fd
}

function letGo({ stdio: [, , , , gate] }: ChildProcess): void {
  if (!(gate instanceof Writable)) throw new Error('The program could not be started')
  // The program may have been killed already.
  gate.on('error', () => {})
  gate.end('\n')
}

function tell(notice: Notice): void {
  process.stdout.write(`${JSON.stringify(notice)}\n`)
}
