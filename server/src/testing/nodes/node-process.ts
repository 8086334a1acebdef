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

/** A node without HTTP. It prints its leadership status after every check. */
const script = (databaseUrl: string, { shifted = false }: NodeChanges) => `
  import { startNode } from ${JSON.stringify(bundled(MAIN))}
  import { realWorld as world } from ${JSON.stringify(bundled(WORLD))}
  import { silentMeter } from ${JSON.stringify(bundled(METER))}
  import { shiftedPool } from ${JSON.stringify(bundled(CLOCK))}
  const leadership = (leads, epoch) => console.log(JSON.stringify({ leads, epoch }))
  const onTrouble = (where, error) => console.error(where, error)
  const databaseUrl = ${JSON.stringify(databaseUrl)}
  const storage = ${shifted} ? { pool: shiftedPool(databaseUrl) } : { databaseUrl }
  const node = await startNode({ storage, world, meter: { ...silentMeter, leadership }, allowNoFsync: false, onTrouble })
  process.on('SIGTERM', () => node.close())`

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

  private constructor(databaseUrl: string, changes: NodeChanges) {
    const args = [...nodeArgs, '--input-type=module', '--eval', script(databaseUrl, changes)]
    this.#child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
    this.#exited = once(this.#child, 'exit')
    if (this.#child.stdout !== null) createInterface(this.#child.stdout).on('line', (line) => this.#hear(line))
  }

  static async start(databaseUrl: string, changes: NodeChanges = {}): Promise<NodeProcess> {
    const node = new NodeProcess(databaseUrl, changes)
    await until('the node to take part', async () => node.standing)
    return node
  }

  #hear(line: string): void {
    const standing = JSON.parse(line) as LeadershipStatus
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

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal)
  }

  /** SIGTERM shuts the node down, SIGKILL kills it. Both may be called after its end. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    this.#child.kill(signal)
    await this.#exited
  }
}
