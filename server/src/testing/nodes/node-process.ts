import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { bundled } from '../../../../scripts/testing/programs.ts'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import { until } from '../store/store.ts'

const MAIN = join(import.meta.dirname, '../../node/start-node.ts')
const WORLD = join(import.meta.dirname, '../../node/world.ts')
const METER = join(import.meta.dirname, '../../services/system/meter.ts')
const CLOCK = join(import.meta.dirname, '../store/shifted-clock.ts')

/** A test's changes to a node. */
export interface NodeChanges {
  /** The test shifts the clock of the database. */
  shifted?: boolean
}

/** A node without HTTP. It prints its leadership status after every check, and the answers to what the test asks. */
const script = (databaseUrl: string, { shifted = false }: NodeChanges) => `
  import { createInterface } from 'node:readline'
  import { startNode } from ${JSON.stringify(bundled(MAIN))}
  import { realWorld as world } from ${JSON.stringify(bundled(WORLD))}
  import { silentMeter } from ${JSON.stringify(bundled(METER))}
  import { shiftedPool } from ${JSON.stringify(bundled(CLOCK))}
  const leadership = (leads, epoch) => console.log(JSON.stringify({ leads, epoch }))
  const onTrouble = (where, error) => console.error(where, error)
  const databaseUrl = ${JSON.stringify(databaseUrl)}
  const storage = ${shifted} ? { pool: shiftedPool(databaseUrl) } : { databaseUrl }
  const node = await startNode({ storage, world, meter: { ...silentMeter, leadership }, allowNoFsync: false, onTrouble })
  const { submission, runs, series } = node.services
  const tasks = {
    async work({ queue, jobs }) {
      for (let i = 0; i < jobs; i++) await submission.submit({ userId: 'local', role: 'admin' }, { kind: 'work', queue }, { key: null })
      for (let ended = 0; ended < jobs; ) {
        const leases = await runs.lease('w', { queues: [queue], kinds: [], max: jobs - ended, waitMs: 100, startId: world.uuid() })
        for (const { lease_id } of leases) await runs.finish('w', lease_id, { verb: 'finish', result: '1', summaryText: null, freqsCsv: null, meta: null, costMicros: null })
        ended += leases.length
      }
      return jobs
    },
    series: ({ queue }) => series.read('1h', queue),
  }
  createInterface(process.stdin).on('line', async (line) => {
    const { ask, task } = JSON.parse(line)
    console.log(JSON.stringify({ ask, answer: await tasks[task.name](task) }))
  })
  process.on('SIGTERM', () => node.close().then(() => process.stdin.destroy()))`

/** Runs jobs of the queue from their submission to their end, or reads the series of the last hour. */
type Task = { name: 'work'; queue: string; jobs: number } | { name: 'series'; queue: string | null }

export interface LeadershipStatus {
  leads: boolean
  epoch: number
}

/** A control-plane process on PostgreSQL that can be killed and paused. */
export class NodeProcess {
  readonly #child: ChildProcess
  readonly #exited: Promise<unknown>
  /** The last printed status. */
  standing: LeadershipStatus | null = null
  /** Every change of the printed status, oldest first. */
  readonly changes: LeadershipStatus[] = []
  readonly #answers = new Map<number, unknown>()
  #asked = 0

  private constructor(databaseUrl: string, changes: NodeChanges) {
    const args = [...nodeArgs, '--input-type=module', '--eval', script(databaseUrl, changes)]
    this.#child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#exited = once(this.#child, 'exit')
    if (this.#child.stdout !== null) createInterface(this.#child.stdout).on('line', (line) => this.#hear(line))
  }

  static async start(databaseUrl: string, changes: NodeChanges = {}): Promise<NodeProcess> {
    const node = new NodeProcess(databaseUrl, changes)
    await until('the node to take part', async () => node.standing)
    return node
  }

  #hear(line: string): void {
    const said = JSON.parse(line) as LeadershipStatus | { ask: number; answer: unknown }
    if ('ask' in said) {
      this.#answers.set(said.ask, said.answer)
      return
    }
    const standing = said
    const changed = this.standing?.leads !== standing.leads || this.standing.epoch !== standing.epoch
    this.standing = standing
    if (changed) this.changes.push(standing)
  }

  /** Resolves when the node leads, with the time that took in ms. */
  async untilLeads(): Promise<number> {
    const beganMs = performance.now()
    await until('the node to lead', async () => this.standing?.leads)
    return performance.now() - beganMs
  }

  async do(task: Task): Promise<unknown> {
    const ask = ++this.#asked
    this.#child.stdin?.write(`${JSON.stringify({ ask, task })}\n`)
    await until(`the node to ${task.name}`, async () => this.#answers.has(ask))
    return this.#answers.get(ask)
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal)
  }

  /** SIGTERM shuts the node down, SIGKILL kills it. Both may be called after its end. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    this.#child.kill(signal)
    await this.#exited
  }
}
