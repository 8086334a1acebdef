import type pg from 'pg'
import { MIGRATIONS, requireOwnLayout, SCHEMA_VERSION } from '../../migrations/index.ts'
import { postgresStatements, refusal, schemaVerdict } from '../../migrations/migration.ts'
import { StoreRefused } from '../../port.ts'
import { BY_KEY } from '../../statement.ts'
import { Servers } from './servers.ts'
import { BEGIN_MIGRATION } from './settings.ts'

/**
 * A text as PostgreSQL runs it, with the name of the schema and the clock. An `ANY` can be looked up in an index, but not be
 * merged: PostgreSQL would read a whole table in the order of its key if it takes the table for empty.
 */
export function postgresText(text: string, schema: string): string {
  return text
    .replace(/\bichido\./g, `${schema}.`)
    .replace(/\bnow_ms\(\)/g, '(extract(epoch FROM clock_timestamp()) * 1000)::bigint')
    .replace(BY_KEY, '$<key> = ANY(ARRAY[$<value>])')
}

/** Throws `StoreRefused` if the database has an older layout. */
export async function schemaVersion(client: pg.ClientBase, schema: string): Promise<number> {
  const { rows } = await client.query(
    `SELECT coalesce(max(version), 0) AS version, max(name) FILTER (WHERE version = 1) AS first_name
      FROM ${schema}.schema_migrations`,
  )
  requireOwnLayout(rows[0].first_name ?? undefined)
  return Number(rows[0].version)
}

async function isMigrated(client: pg.ClientBase, schema: string): Promise<boolean> {
  const { rows } = await client.query('SELECT to_regclass($1) AS found', [`${schema}.schema_migrations`])
  return rows[0].found !== null
}

/** Whether there is nothing to do. The role needs no right to change the schema. */
async function isUpToDate(client: pg.ClientBase, schema: string): Promise<boolean> {
  return (await isMigrated(client, schema)) && requireKnown(await schemaVersion(client, schema)) >= SCHEMA_VERSION
}

function requireKnown(found: number): number {
  if (schemaVerdict(found, SCHEMA_VERSION) === 'refuse') throw new StoreRefused(refusal(found, SCHEMA_VERSION))
  return found
}

export async function migrate(client: pg.PoolClient, schema: string): Promise<void> {
  if (await isUpToDate(client, schema)) return
  await client.query(BEGIN_MIGRATION)
  try {
    // Nodes that start together migrate one after the other.
    await client.query(`SELECT pg_advisory_xact_lock(hashtext('ichido migrate ' || $1))`, [schema])
    const exists = await client.query('SELECT 1 FROM pg_namespace WHERE nspname = $1', [schema])
    if (exists.rows.length === 0) await client.query(`CREATE SCHEMA ${schema}`)
    await client.query(
      `CREATE TABLE IF NOT EXISTS ${schema}.schema_migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at bigint NOT NULL)`,
    )
    const found = requireKnown(await schemaVersion(client, schema))
    for (const migration of MIGRATIONS.filter((m) => m.version > found)) {
      for (const statement of postgresStatements(migration)) {
        await client.query(postgresText(statement, schema))
      }
      await client.query(postgresText('INSERT INTO ichido.schema_migrations VALUES ($1, $2, now_ms())', schema), [
        migration.version,
        migration.name,
      ])
    }
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}

/** The version of the schema, read without changing anything; null when there is no store yet. */
export async function peekPostgres(databaseUrl: string, schema: string): Promise<number | null> {
  const client = await new Servers(databaseUrl).connect()
  try {
    return (await isMigrated(client, schema)) ? await schemaVersion(client, schema) : null
  } finally {
    await client.end()
  }
}
