import { IchidoError } from '@ichido/sdk/protocol'
import { describe, expect, test } from 'vitest'
import type { Services } from '../services/index.ts'
import { callerOf, eachServices } from '../testing/each-services.ts'
import { sql, unique, until } from '../testing/store.ts'
import { hashToken } from './access.ts'
import { requireQueues, TOKEN_GRACE_MS, WORKER_TOKEN_TTL_MS, type WorkerIdentity } from './workers.ts'

const operator = callerOf('operator')
const MINUTE_MS = 60_000

eachServices(({ services }) => {
  const workers = () => services().workers
  const store = () => services().deps.store
  const enrolled = async (enrollment: Parameters<Services['workers']['enroll']>[1] = {}) =>
    (await workers().enroll(operator, enrollment)).enroll_token

  async function registered(changes: Partial<Parameters<Services['workers']['register']>[0]> = {}) {
    const made = await workers().register({ enrollToken: changes.enrollToken ?? (await enrolled()), ...changes })
    if (made === null) throw new Error('The enroll token was refused')
    return made
  }

  async function identity(token: string): Promise<WorkerIdentity> {
    const found = await workers().authenticate(token)
    if (found === null || found === 'revoked') throw new Error(`The token is ${found}`)
    return found
  }

  const expiryMs = async (token: string) => {
    const [row] = await sql(
      store(),
      'SELECT expires_at, now_ms() AS now FROM ichido.worker_tokens WHERE token_hash = $1',
      hashToken(token),
    )
    return Number(row?.expires_at) - Number(row?.now)
  }
  /** Lets a worker's tokens, and what is known of it, grow old. */
  async function age(workerId: string, ms: number) {
    await sql(store(), `UPDATE ichido.worker_tokens SET expires_at = expires_at - ${ms} WHERE worker_id = $1`, workerId)
    await sql(store(), `UPDATE ichido.workers SET last_seen_at = last_seen_at - ${ms} WHERE worker_id = $1`, workerId)
  }

  describe('enroll and register', () => {
    test('an enroll token registers a worker, whose token then says who it is', async () => {
      const made = await workers().enroll(operator, { label: 'lab pc', queues: ['a', 'b'], ttlSeconds: 60 })
      expect(made).toMatchObject({ ttl_seconds: 60, label: 'lab pc', queues: ['a', 'b'] })
      expect(made.enroll_token).toMatch(/^ichido_enroll_[\w-]{43}$/)
      expect(Date.parse(made.expires_at) - Date.now()).toBeGreaterThan(50_000)

      const worker = await registered({ enrollToken: made.enroll_token, meta: { gpus: 2 } })
      expect(worker).toMatchObject({ name: 'lab pc', queues: ['a', 'b'] })
      expect(worker.worker_token).toMatch(/^ichido_worker_[\w-]{43}$/)
      expect(Date.parse(worker.expires_at) - Date.parse(worker.registered_at)).toBe(WORKER_TOKEN_TTL_MS)
      expect(await workers().authenticate(worker.worker_token)).toMatchObject({
        workerId: worker.worker_id,
        queues: ['a', 'b'],
      })
      expect(await workers().get(operator, worker.worker_id)).toEqual({
        worker_id: worker.worker_id,
        name: 'lab pc',
        state: 'online',
        queues: ['a', 'b'],
        meta: { gpus: 2 },
        registered_at: expect.any(String),
        last_seen_at: expect.any(String),
        token_expires_at: worker.expires_at,
        revoked_at: null,
        live_leases: 0,
      })
    })
  })
})
