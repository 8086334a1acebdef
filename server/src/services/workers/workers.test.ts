import { describe, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { ageWorker, enrolled, lifeOf, registered } from '../../testing/services/workers.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { hashToken } from '../access/access.ts'
import { requireQueues, TOKEN_GRACE_MS, WORKER_TOKEN_TTL_MS, type WorkerIdentity } from './workers.ts'

const operator = callerOf('operator')
const HOUR_MS = 3_600_000

let skippedMs = 0
/** Clears the trusted tokens, as on a node that has not seen them. */
const forgetTrust = () => {
  skippedMs += 1_000
}
const world = { ...realWorld, monotonic: () => realWorld.monotonic() + skippedMs }

eachServices(
  ({ services }) => {
    const workers = () => services().workers
    const store = () => services().deps.store

    async function identity(token: string): Promise<WorkerIdentity> {
      forgetTrust()
      const found = await workers().authenticate(token)
      if (found === null || found === 'revoked') throw new Error(`The token is ${found}`)
      return found
    }
    const standing = async (token: string) => {
      forgetTrust()
      const found = await workers().authenticate(token)
      return found === null || found === 'revoked' ? found : found.workerId
    }
    const refused = (message: string | RegExp, code = 'FORBIDDEN') =>
      expect.objectContaining({ code, message: expect.stringMatching(message) })

    describe('enroll and register', () => {
      test('an enroll token registers a worker, and its token identifies it', async () => {
        const made = await workers().enroll(operator, { label: 'lab pc', queues: ['a', 'b'], ttlSeconds: 60 })
        expect(made).toMatchObject({ ttl_seconds: 60, label: 'lab pc', queues: ['a', 'b'] })
        expect(made.enroll_token).toMatch(/^ichido_enroll_[\w-]{43}$/)

        const worker = await registered(services(), { enrollToken: made.enroll_token, meta: { gpus: 2 } })
        expect(worker).toMatchObject({ name: 'lab pc', queues: ['a', 'b'] })
        expect(worker.worker_token).toMatch(/^ichido_worker_[\w-]{43}$/)
        expect(Date.parse(worker.expires_at) - Date.parse(worker.registered_at)).toBe(WORKER_TOKEN_TTL_MS)
        const tokenHash = hashToken(worker.worker_token)
        const known = { workerId: worker.worker_id, queues: ['a', 'b'], tokenHash }
        expect(await workers().authenticate(worker.worker_token)).toEqual(known)
        expect(await workers().get(operator, worker.worker_id)).toEqual({
          worker_id: worker.worker_id,
          name: 'lab pc',
          state: 'online',
          queues: ['a', 'b'],
          meta: { gpus: 2 },
          registered_at: expect.any(String),
          last_seen_at: expect.any(String),
          token_expires_at: worker.expires_at,
          detached_at: null,
          draining_since: null,
          revoked_at: null,
          live_leases: 0,
          holds: [],
        })
      })

      test('an enroll token works once, before it expires', async () => {
        const token = await enrolled(services())
        await registered(services(), { enrollToken: token })
        expect(await workers().register({ enrollToken: token })).toBeNull()
        expect(await workers().register({ enrollToken: 'ichido_enroll_unknown' })).toBeNull()

        const late = await enrolled(services())
        await sql(
          store(),
          'UPDATE ichido.enroll_tokens SET expires_at = now_ms() WHERE token_hash = $1',
          hashToken(late),
        )
        expect(await workers().register({ enrollToken: late })).toBeNull()
      })

      test('two concurrent registrations with one token make one worker', async () => {
        const token = await enrolled(services(), { label: unique('race') })
        const made = await Promise.all(Array.from({ length: 8 }, () => workers().register({ enrollToken: token })))
        const [first, ...rest] = made.filter((one) => one !== null)
        expect(rest).toEqual([])
        const text = 'SELECT worker_id FROM ichido.workers WHERE name = $1'
        expect(await sql(store(), text, first?.name ?? '')).toEqual([{ worker_id: first?.worker_id }])
      })

      test('the same worker can repeat a registration whose answer got lost', async () => {
        const [enrollToken, registerId] = [await enrolled(services()), unique('my-registration')]
        const lost = await registered(services(), { enrollToken, registerId })
        const again = await registered(services(), { enrollToken, registerId })
        expect(again.worker_id).toBe(lost.worker_id)
        expect(await standing(again.worker_token)).toBe(lost.worker_id)
        expect(await lifeOf(store(), lost.worker_token)).toBeLessThanOrEqual(TOKEN_GRACE_MS)
        expect(await workers().register({ enrollToken, registerId: unique('another-one') })).toBeNull()
        expect(await workers().register({ enrollToken })).toBeNull()

        await workers().revoke(operator, lost.worker_id)
        await expect(workers().register({ enrollToken, registerId })).rejects.toEqual(refused('revoked'))
      })

      test.each([
        { allowed: undefined, asked: undefined, given: null },
        { allowed: undefined, asked: ['a'], given: ['a'] },
        { allowed: ['a', 'b'], asked: undefined, given: ['a', 'b'] },
        { allowed: ['a', 'b'], asked: ['b'], given: ['b'] },
      ])('allowed $allowed, asked for $asked: gets $given', async ({ allowed, asked, given }) => {
        const worker = await registered(services(), { queues: asked }, { queues: allowed })
        expect(worker.queues).toEqual(given)
        expect(await workers().authenticate(worker.worker_token)).toMatchObject({ queues: given })
      })

      test('a forbidden queue is refused by name, and the token can still be used', async () => {
        const enrollToken = await enrolled(services(), { queues: ['a', 'b'] })
        const asked = workers().register({ enrollToken, queues: ['a', 'c'] })
        await expect(asked).rejects.toEqual(refused(/enrolled for the queue c$/))
        expect(await registered(services(), { enrollToken, queues: ['a'] })).toMatchObject({ queues: ['a'] })
      })

      test('the name is the own name, or the label, or the id', async () => {
        expect(await registered(services(), { name: 'own' }, { label: 'label' })).toMatchObject({ name: 'own' })
        const nameless = await registered(services())
        expect(nameless.name).toBe(nameless.worker_id)
      })

      test('only hashes are stored', async () => {
        const enrollToken = await enrolled(services(), { label: unique('label') })
        const registerId = unique('my-registration')
        const worker = await registered(services(), { enrollToken, registerId, workerToken: 'ichido_worker_before' })
        const renewed = await workers().renew(await identity(worker.worker_token))
        const rows = await Promise.all(
          ['workers', 'worker_tokens', 'enroll_tokens', 'audit'].map((table) =>
            sql(store(), `SELECT * FROM ichido.${table}`),
          ),
        )
        const stored = JSON.stringify(rows)
        expect(stored).toContain(hashToken(renewed.worker_token))
        for (const secret of [enrollToken, registerId, worker.worker_token, renewed.worker_token, 'worker_before']) {
          expect(stored).not.toContain(secret)
        }
      })
    })

    describe('register again', () => {
      const anew = (worker: { worker_id: string; worker_token: string }) => ({
        workerId: worker.worker_id,
        workerToken: worker.worker_token,
      })

      test('with its last token, even expired, a worker keeps its identity', async () => {
        const before = await registered(services(), { name: 'old', meta: { cpus: 4 } })
        await ageWorker(store(), before.worker_id, 8 * 24 * HOUR_MS)
        expect(await standing(before.worker_token)).toBeNull()
        expect(await workers().get(operator, before.worker_id)).toMatchObject({ state: 'unseen' })

        const after = await registered(services(), anew(before), { queues: ['q'] })
        expect(after).toMatchObject({ worker_id: before.worker_id, name: 'old', queues: ['q'] })
        expect(await standing(after.worker_token)).toBe(before.worker_id)
        const shown = await workers().get(operator, before.worker_id)
        expect(shown).toMatchObject({ state: 'online', meta: { cpus: 4 }, token_expires_at: after.expires_at })
      })

      test('the earlier token works for ten minutes at most', async () => {
        const before = await registered(services())
        await registered(services(), anew(before))
        expect(await standing(before.worker_token)).toBe(before.worker_id)
        await ageWorker(store(), before.worker_id, TOKEN_GRACE_MS)
        expect(await standing(before.worker_token)).toBeNull()
      })

      test('an enroll token for a worker is its proof, and fits no other worker', async () => {
        const [worker, other] = [await registered(services()), await registered(services())]
        const made = () => enrolled(services(), { workerId: worker.worker_id })
        const byName = await registered(services(), { enrollToken: await made(), workerId: worker.worker_id })
        expect(byName.worker_id).toBe(worker.worker_id)
        const unnamed = await registered(services(), { enrollToken: await made() })
        expect(unnamed.worker_id).toBe(worker.worker_id)
        const asOther = workers().register({ enrollToken: await made(), ...anew(other) })
        await expect(asOther).rejects.toEqual(refused('The caller must prove'))
      })

      test('without proof it is refused, and the enroll token can still be used', async () => {
        const [worker, other] = [await registered(services()), await registered(services())]
        const enrollToken = await enrolled(services())
        for (const workerToken of [undefined, 'ichido_worker_guessed', other.worker_token]) {
          const asked = workers().register({ enrollToken, workerId: worker.worker_id, workerToken })
          await expect(asked).rejects.toEqual(refused('The caller must prove'))
        }
        const stranger = workers().register({ enrollToken, workerId: world.uuid(), workerToken: worker.worker_token })
        await expect(stranger).rejects.toEqual(refused('The caller must prove'))
        expect(await registered(services(), { enrollToken, ...anew(worker) })).toMatchObject({
          worker_id: worker.worker_id,
        })
      })

      test('a revoked worker stays revoked', async () => {
        const worker = await registered(services())
        const madeForIt = await enrolled(services(), { workerId: worker.worker_id })
        await workers().revoke(operator, worker.worker_id)
        const enrollToken = await enrolled(services())
        for (const registration of [{ enrollToken, ...anew(worker) }, { enrollToken: madeForIt }]) {
          await expect(workers().register(registration)).rejects.toEqual(refused('revoked'))
        }
        await expect(workers().enroll(operator, { workerId: worker.worker_id })).rejects.toEqual(refused('revoked'))
        expect(await standing(worker.worker_token)).toBe('revoked')
        expect(await registered(services(), { enrollToken })).not.toMatchObject({ worker_id: worker.worker_id })
      })

      test('an unknown worker cannot be enrolled again', async () => {
        const asked = workers().enroll(operator, { workerId: world.uuid() })
        await expect(asked).rejects.toEqual(refused('There is no worker', 'NOT_FOUND'))
      })
    })

    describe('renew', () => {
      test('the old token works until the new one is used, then for ten minutes', async () => {
        const worker = await registered(services())
        await ageWorker(store(), worker.worker_id, 6 * 24 * HOUR_MS)
        const renewed = await workers().renew(await identity(worker.worker_token))
        expect(renewed.worker_token).toMatch(/^ichido_worker_[\w-]{43}$/)
        expect(await lifeOf(store(), renewed.worker_token)).toBeGreaterThan(WORKER_TOKEN_TTL_MS - HOUR_MS)
        expect(await lifeOf(store(), worker.worker_token)).toBeGreaterThan(HOUR_MS)

        expect(await standing(renewed.worker_token)).toBe(worker.worker_id)
        expect(await lifeOf(store(), worker.worker_token)).toBeLessThanOrEqual(TOKEN_GRACE_MS)
        expect(await standing(worker.worker_token)).toBe(worker.worker_id)
        await ageWorker(store(), worker.worker_id, TOKEN_GRACE_MS)
        expect(await standing(worker.worker_token)).toBeNull()
        expect(await standing(renewed.worker_token)).toBe(worker.worker_id)
      })

      test('after a lost answer the old token renews again', async () => {
        const worker = await registered(services())
        await workers().renew(await identity(worker.worker_token))
        await ageWorker(store(), worker.worker_id, 24 * HOUR_MS)
        const renewed = await workers().renew(await identity(worker.worker_token))
        expect(await standing(renewed.worker_token)).toBe(worker.worker_id)
      })

      test('an expired token renews nothing, even where it is trusted', async () => {
        const worker = await registered(services())
        const known = await identity(worker.worker_token)
        await ageWorker(store(), worker.worker_id, WORKER_TOKEN_TTL_MS)
        await expect(workers().renew(known)).rejects.toMatchObject({ code: 'UNAUTHENTICATED' })
        expect(await workers().authenticate(worker.worker_token)).toBeNull()
      })

      test('a revoked worker renews nothing, even where it is trusted', async () => {
        const worker = await registered(services())
        const known = await identity(worker.worker_token)
        await workers().revoke(operator, worker.worker_id)
        await expect(workers().renew(known)).rejects.toEqual(refused('revoked'))
        const text = 'SELECT token_hash FROM ichido.worker_tokens WHERE worker_id = $1'
        expect(await sql(store(), text, worker.worker_id)).toHaveLength(1)
      })

      test('old tokens are removed', async () => {
        const worker = await registered(services())
        const [second, third] = [
          await workers().renew(await identity(worker.worker_token)),
          await workers().renew(await identity(worker.worker_token)),
        ]
        await identity(second.worker_token)
        await sql(
          store(),
          `UPDATE ichido.worker_tokens SET expires_at = expires_at - ${91 * 24 * HOUR_MS} WHERE token_hash = $1`,
          hashToken(worker.worker_token),
        )
        await workers().renew(await identity(third.worker_token))
        const text = 'SELECT token_hash FROM ichido.worker_tokens WHERE worker_id = $1'
        const kept = (await sql(store(), text, worker.worker_id)).map((row) => row.token_hash)
        expect(kept).toHaveLength(3)
        expect(kept).not.toContain(hashToken(worker.worker_token))
      })
    })

    describe('list and show', () => {
      test('workers are listed newest first, in pages', async () => {
        const made = []
        for (let i = 0; i < 5; i++) made.unshift((await registered(services())).worker_id)
        const listed: string[] = []
        let cursor: string | null = null
        do {
          const page = await workers().list(operator, 2, cursor)
          listed.push(...page.data.map((worker) => worker.worker_id))
          cursor = page.next_cursor
        } while (cursor !== null)
        expect(listed.slice(0, 5)).toEqual(made)
        expect(new Set(listed).size).toBe(listed.length)
      })

      test('workers are counted by state', async () => {
        const before = await workers().counts()
        const [silent, bad] = [await registered(services()), await registered(services()), await registered(services())]
        await ageWorker(store(), silent.worker_id, HOUR_MS)
        await workers().revoke(operator, bad.worker_id)
        await workers().detach(await identity((await registered(services())).worker_token))
        expect(await workers().counts()).toEqual({
          online: before.online + 1,
          detached: before.detached + 1,
          unseen: before.unseen + 1,
          revoked: before.revoked + 1,
        })
      })

      test.each(['viewer', 'submitter'] as const)('a %s makes and revokes nothing', async (role) => {
        const worker = await registered(services())
        await expect(workers().enroll(callerOf(role), {})).rejects.toMatchObject({ code: 'FORBIDDEN' })
        await expect(workers().revoke(callerOf(role), worker.worker_id)).rejects.toMatchObject({ code: 'FORBIDDEN' })
        expect(await standing(worker.worker_token)).toBe(worker.worker_id)
      })

      test('a submitter does not see workers', async () => {
        const { worker_id } = await registered(services())
        await expect(workers().list(callerOf('submitter'), 10, null)).rejects.toMatchObject({ code: 'FORBIDDEN' })
        await expect(workers().get(callerOf('submitter'), worker_id)).rejects.toMatchObject({ code: 'FORBIDDEN' })
        expect(await workers().get(callerOf('viewer'), worker_id)).toMatchObject({ worker_id })
      })

      test.each(['none', '01a1e12b-0000-7000-8000-000000000000'])('there is no worker %s', async (id) => {
        await expect(workers().get(operator, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
        await expect(workers().revoke(operator, id)).rejects.toMatchObject({ code: 'NOT_FOUND' })
      })
    })
  },
  { world },
)

describe('requireQueues', () => {
  test.each([
    { queues: null, asked: ['a', 'b'], refused: null },
    { queues: ['a', 'b'], asked: ['b'], refused: null },
    { queues: ['a'], asked: ['a', 'b'], refused: 'b' },
    { queues: [], asked: ['a'], refused: 'a' },
  ])('$queues, asked for $asked', ({ queues, asked, refused }) => {
    const ask = () => requireQueues({ queues }, asked)
    if (refused === null) expect(ask()).toBeUndefined()
    else expect(ask).toThrow(expect.objectContaining({ code: 'FORBIDDEN', details: { queue: refused } }))
  })
})
