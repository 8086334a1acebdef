import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { realWorld } from '../../node/world.ts'
import { revokeToken } from '../../store/access/access.ts'
import { createSession, endSession } from '../../store/access/sessions.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import type { Command } from '../../store/port.ts'
import { openNode, sql, until } from '../../testing/store/store.ts'
import { createAccessService, hashToken, LOCAL_ADMIN } from './access.ts'
import { createSessionService, SESSIONS_PER_TOKEN_MAX } from './sessions.ts'

/** On SQLite transactions run one after the other. On PostgreSQL, one of two transactions has to wait. */

let database: Awaited<ReturnType<typeof freshDatabase>>
let store: PostgresStore
let client: pg.Client
beforeAll(async () => {
  database = await freshDatabase()
  store = await openNode(database.url)
  client = new pg.Client(database.url)
  await client.connect()
})
afterAll(async () => {
  await client.end()
  await store.close()
  await database.leave()
})

/** A node without knowledge of its own. */
const node = () => createSessionService({ world: realWorld, store })

async function newToken() {
  const access = createAccessService({ world: realWorld, store })
  return access.createToken(LOCAL_ADMIN, { userId: 'ann', role: 'viewer', name: '', ttlSeconds: null })
}

const sessionOf = (token: string, secret: string) =>
  createSession({
    sessionId: realWorld.uuid(),
    sessionHash: hashToken(secret),
    tokenHash: hashToken(token),
    ttlMs: 60_000,
    perTokenMax: SESSIONS_PER_TOKEN_MAX,
    auditId: realWorld.uuid(),
  })

/** Another node has carried out `first` but not committed it when `second` begins. */
async function during<T>(first: Command<unknown>, second: () => Promise<T>): Promise<T> {
  await client.query('BEGIN')
  await store.writeIn(client, first)
  let answered = false
  const answer = second().finally(() => {
    answered = true
  })
  await until('the second transaction waits for the first one, or does not', async () => {
    const { rows } = await client.query(
      "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    return answered || rows.length
  })
  await client.query('COMMIT')
  return answer
}

const count = async (tokenId: string) =>
  (await sql(store, 'SELECT 1 AS one FROM ichido.sessions WHERE token_id = $1', tokenId)).length

test('a sign-in during the revocation of its token makes no session', async () => {
  const { token, token_id } = await newToken()
  expect(await during(revokeToken(token_id), () => node().create(token))).toBeNull()
  expect(await count(token_id)).toBe(0)
})

test('a session that was made just before the revocation does not survive it', async () => {
  const { token, token_id } = await newToken()
  expect(await during(sessionOf(token, 'secret'), () => store.write(revokeToken(token_id)))).toBe(true)
  expect(await count(token_id)).toBe(1)
  expect(await node().authenticate('secret')).toBeNull()
})

test('two sign-ins at once do not exceed the maximum', async () => {
  const { token, token_id } = await newToken()
  for (let i = 0; i < SESSIONS_PER_TOKEN_MAX; i++) await node().create(token)
  const second = await during(sessionOf(token, 'one more'), () => node().create(token))
  expect(await node().authenticate(second?.secret ?? '')).not.toBeNull()
  expect(await count(token_id)).toBe(SESSIONS_PER_TOKEN_MAX)
})

test('a sign-out that waited for another one records nothing', async () => {
  const { token, token_id } = await newToken()
  const made = await node().create(token)
  const secret = made?.secret ?? ''
  await during(endSession(hashToken(secret), realWorld.uuid()), () => node().end(secret))
  expect(await count(token_id)).toBe(0)
  const ended = await sql(store, "SELECT before FROM ichido.audit WHERE action = 'session.delete'")
  expect(ended.filter(({ before }) => JSON.stringify(before).includes(token_id))).toHaveLength(1)
})

test('a sign-in whose commit was uncertain is carried out once', async () => {
  const { token, token_id } = await newToken()
  const command = sessionOf(token, 'again')
  const first = await store.write(command)
  expect(await store.write(command)).toEqual(first)
  expect(await count(token_id)).toBe(1)
})
