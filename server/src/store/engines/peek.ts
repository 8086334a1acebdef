import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Servers } from './postgres/servers.ts'
import { DATABASE_FILE } from './sqlite/sqlite.ts'

/** The version of a store's schema, without opening it as its owner or changing anything; null when there is none yet. */

export function peekSqlite(dataDir: string): number | null {
  const file = join(dataDir, DATABASE_FILE)
  if (!existsSync(file)) return null
  const db = new DatabaseSync(file, { readOnly: true })
  try {
    return Number(db.prepare('SELECT user_version FROM pragma_user_version').get()?.user_version)
  } finally {
    db.close()
  }
}

export async function peekPostgres(databaseUrl: string, schema: string): Promise<number | null> {
  const client = await new Servers(databaseUrl).connect()
  try {
    const table = `${schema}.schema_migrations`
    const { rows } = await client.query('SELECT to_regclass($1) AS found', [table])
    if (rows[0].found === null) return null
    return Number((await client.query(`SELECT coalesce(max(version), 0) AS version FROM ${table}`)).rows[0].version)
  } finally {
    await client.end()
  }
}
