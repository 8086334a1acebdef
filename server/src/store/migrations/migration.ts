/** One step of the schema. Migrations only grow: a released one is never edited, the next one is added. */
export interface Migration {
  version: number
  name: string
  statements: readonly Ddl[]
}

/** A statement in PostgreSQL's dialect, which `sqliteDdl` translates; or a statement for each engine that needs one. */
export type Ddl = string | { postgres?: string; sqlite?: string }

export function postgresStatements({ statements }: Migration): string[] {
  return statements.flatMap((ddl) => (typeof ddl === 'string' ? ddl : (ddl.postgres ?? [])))
}

export function sqliteStatements({ statements }: Migration): string[] {
  return statements.flatMap((ddl) => (typeof ddl === 'string' ? ddl : (ddl.sqlite ?? []))).map(sqliteDdl)
}

/** SQLite has four storage classes; STRICT tables enforce them. A table that ends with its own options must name STRICT. */
function sqliteDdl(statement: string): string {
  const text = statement
    .replace(/\bichido\./g, '')
    .replace(/\b(bigint|boolean)\b/g, 'INTEGER')
    .replace(/\buuid\b/g, 'TEXT')
  return text.startsWith('CREATE TABLE') && text.endsWith(')') ? `${text} STRICT` : text
}

/**
 * Decides whether code that knows schema `known` may use a database at schema `found`. One version ahead is allowed,
 * because a migration never breaks the previous version: nodes are upgraded one after the other.
 */
export function schemaVerdict(found: number, known: number): 'migrate' | 'current' | 'ahead' | 'refuse' {
  if (found < known) return 'migrate'
  if (found === known) return 'current'
  return found === known + 1 ? 'ahead' : 'refuse'
}

export function refusal(found: number, known: number): string {
  return `The database is at schema version ${found}; this Ichido knows version ${known} and can work with at most ${known + 1}. Upgrade this node, or restore a backup made before the upgrade.`
}
