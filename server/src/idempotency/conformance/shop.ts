import { randomUUID } from 'node:crypto'
import type { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { type Answer, type Call, type Keys, postgresKeys, sqliteKeys } from '../index.ts'

/** An order tells the handler under test what to do; its effects are counted by `note`. */
export interface Order {
  note: string
  act?: 'write' | 'section' | 'section_then_throw' | 'section_throws' | 'throw' | 'wait' | 'nothing'
  status?: number
  headers?: Record<string, string>
  bodyBytes?: number
}

/** An application's own database, with a table for the effects of its handlers. */
export interface Shop<Tx, Returned> {
  keys: Keys<Tx, Returned>
  write(note: string): Promise<void>
  section(note: string, answer: () => Answer): (tx: Tx) => Returned
  count(note: string): Promise<number>
  sql(text: string): Promise<unknown>
}

const EFFECTS = 'CREATE TABLE IF NOT EXISTS effects (note TEXT NOT NULL)'

export function sqliteShop(database: DatabaseSync, keys = sqliteKeys(database)): Shop<DatabaseSync, Answer> {
  database.exec(EFFECTS)
  const insert = database.prepare('INSERT INTO effects VALUES (?)')
  return {
    keys,
    async write(note) {
      insert.run(note)
    },
    section: (note, answer) => (tx) => {
      tx.prepare('INSERT INTO effects VALUES (?)').run(note)
      return answer()
    },
    count: async (note) =>
      Number(database.prepare('SELECT count(*) AS n FROM effects WHERE note = ?').get(note)?.n ?? -1),
    sql: async (text) => database.exec(text),
  }
}

export async function postgresShop(pool: pg.Pool): Promise<Shop<pg.PoolClient, Answer | Promise<Answer>>> {
  await pool.query(`SELECT pg_advisory_xact_lock(1); ${EFFECTS}`)
  const insert = 'INSERT INTO effects VALUES ($1)'
  return {
    keys: postgresKeys(pool),
    async write(note) {
      await pool.query(insert, [note])
    },
    section: (note, answer) => async (tx) => {
      await tx.query(insert, [note])
      return answer()
    },
    async count(note) {
      const { rows } = await pool.query('SELECT count(*)::int AS n FROM effects WHERE note = $1', [note])
      return rows[0].n
    },
    sql: (text) => pool.query(text),
  }
}

/** The handler of the orders, whatever framework it runs in. */
export async function serveOrder<Tx, Returned>(
  { write, section }: Shop<Tx, Returned>,
  call: Call<Tx, Returned>,
  order: Order,
  waitFor: Promise<void>,
): Promise<Answer> {
  const { note, act = 'write', status = 201 } = order
  const body = order.bodyBytes ? 'x'.repeat(order.bodyBytes) : { note, made: randomUUID() }
  const answer = { status, headers: { location: `/orders/${note}`, ...order.headers }, body }
  const fail = (): never => {
    throw new Error(`${act}: on purpose`)
  }
  if (act === 'section') return call.withKey(section(note, () => answer))
  if (act === 'section_then_throw') await call.withKey(section(note, () => answer))
  else if (act === 'section_throws') await call.withKey(section(note, fail))
  else if (act !== 'nothing') await write(note)
  if (act === 'wait') await waitFor
  return act.endsWith('throw') ? fail() : answer
}
