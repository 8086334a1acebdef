import { codeOf, innermost } from './cause.ts'

/** What the settings of a store are called where they were given. */
export interface StoreNames {
  dataDir: string
  databaseUrl: string
  schema: string
}

export interface NotOpened {
  message: string
  advice: string
}

/** Errors that say what to do themselves. */
const SAYS_ITSELF = ['ArtifactsElsewhere', 'ShardsRefused', 'StoreFull', 'StoreInUse', 'StoreRefused']

/** Whatever kept a store from being opened, in words that say what to do; null: it says so itself. */
export function whyNotOpened(error: unknown, dataDir: string | null, names: StoreNames): NotOpened | null {
  if (error instanceof Error && SAYS_ITSELF.includes(error.name)) return null
  const why = innermost(error)
  if (dataDir === null)
    return { message: `PostgreSQL cannot be used: ${why}`, advice: adviceFor(codeOf(error), why, names) }
  return {
    message: `The store in ${dataDir} cannot be opened: ${why}`,
    advice: `Set ${names.dataDir} to a folder that this user may write to, or restore a backup into a new one.`,
  }
}

function adviceFor(code: string, why: string, { databaseUrl, schema }: StoreNames): string {
  if (/statement pooling mode/.test(why))
    return 'Set pool_mode = transaction or session for this database in PgBouncer.'
  if (/unsupported startup parameter/.test(why))
    return `Take \`options\` out of ${databaseUrl}, or list it in ignore_startup_parameters of PgBouncer.`
  if (code === '25006')
    return `Name the primary, or all servers, in ${databaseUrl}: postgres://host1,host2/database?target_session_attrs=read-write`
  if (/^28/.test(code)) return `Check the user and the password in ${databaseUrl}.`
  if (code === '3D000') return `Make that database first (createdb), or name another database in ${databaseUrl}.`
  if (code === '42501')
    return `Run \`ichido migrate\` as a user who may change the schema, or set ${schema} to one that the user of ${databaseUrl} owns.`
  if (code === 'ECONNREFUSED') return `Start PostgreSQL, or set ${databaseUrl} to its address.`
  if (/^(ENOTFOUND|EAI_)/.test(code)) return `Check the name of the machine in ${databaseUrl}.`
  return `Check that PostgreSQL runs, that no firewall is in between, and that psql gets through with ${databaseUrl}.`
}
