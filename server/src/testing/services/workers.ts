import type { RegisteredShape } from '@ichido/sdk/protocol'
import { hashToken, LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import type { Enrollment, Registration } from '../../services/workers/workers.ts'
import type { Store } from '../../store/port.ts'
import type { Row } from '../../store/statement.ts'
import { integer } from '../store/rows.ts'
import { only } from '../store/scene.ts'
import { sql } from '../store/store.ts'

export async function enrolled({ workers }: Services, enrollment: Enrollment = {}): Promise<string> {
  return (await workers.enroll(LOCAL_ADMIN, enrollment)).enroll_token
}

/** A registered worker. It uses a new enroll token, unless `changes` contains one. */
export async function registered(
  services: Services,
  changes: Partial<Registration> = {},
  enrollment: Enrollment = {},
): Promise<RegisteredShape> {
  const enrollToken = changes.enrollToken ?? (await enrolled(services, enrollment))
  const made = await services.workers.register({ ...changes, enrollToken })
  if (made === null) throw new Error('The enroll token was refused')
  return made
}

/** Moves back the expiry of a worker's tokens, and the time when the worker was last seen. */
export async function ageWorker(store: Store, workerId: string, ms: number): Promise<void> {
  await sql(store, `UPDATE ichido.worker_tokens SET expires_at = expires_at - ${ms} WHERE worker_id = $1`, workerId)
  await sql(store, `UPDATE ichido.workers SET last_seen_at = last_seen_at - ${ms} WHERE worker_id = $1`, workerId)
}

/** The remaining lifetime of a worker token, in ms. */
export async function lifeOf(store: Store, token: string): Promise<number> {
  const text = 'SELECT expires_at - now_ms() AS life FROM ichido.worker_tokens WHERE token_hash = $1'
  return integer(only<Row>(await sql(store, text, hashToken(token))), 'life')
}
