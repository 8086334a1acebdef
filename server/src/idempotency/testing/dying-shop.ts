import { createServer } from 'node:http'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { postgresShop, type Shop, sqliteShop } from '../conformance/shop.ts'
import { createIdempotency } from '../index.ts'
import { listen } from './listen.ts'

/** A shop that dies in the middle of its first order: `node dying-shop.ts <database> <where> <note> <lease ms>`. */
const [database = '', where = '', note = '', leaseMs = ''] = process.argv.slice(2)

const die = (): never => {
  process.kill(process.pid, 'SIGKILL')
  // The signal may take its time.
  for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000)
}

async function serve<Tx, Returned>(shop: Shop<Tx, Returned>): Promise<void> {
  const once = createIdempotency({ keys: shop.keys, leaseMs: Number(leaseMs) })
  const server = createServer((req, res) =>
    once.node(req, res, { route: 'POST /orders', user: 'ann' }, async () => {
      if (where === 'before its effect') die()
      if (where === 'in its section') await once.callOf(req).withKey(shop.section(note, die))
      await shop.write(note)
      die()
    }),
  )
  process.stdout.write(`${await listen(server)}\n`)
}

if (database.startsWith('postgres')) await serve(await postgresShop(new pg.Pool({ connectionString: database })))
else await serve(sqliteShop(new DatabaseSync(database)))
