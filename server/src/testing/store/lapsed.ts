import type { Leased } from '../../store/leasing/lease-runs.ts'
import { Reaper } from '../nodes/reaper.ts'
import type { Scene } from './scene.ts'
import { sql } from './store.ts'

/** Registers the worker of a scene. */
export async function register({ store, workerId }: Scene): Promise<void> {
  const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', '[]', 0)`
  await sql(store, insert, workerId)
}

/** A run whose worker sent no heartbeat: its lease has expired, the leader has ended it, and the job's next run is pending. */
export async function lapsedRun(scene: Scene, policy: object = {}): Promise<Leased> {
  await register(scene)
  const lease = await scene.running({ policy: { continuation_seconds: 0, ...policy } })
  await scene.age(120_000)
  await (await Reaper.of(scene.store)).reapAll()
  return lease
}
