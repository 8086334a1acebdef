/** An error whose message says what to do. */
export class AdvisedError extends Error {}

/** The store cannot be reached, or did not answer in time. The command may or may not have been carried out. */
export class StoreUnavailable extends Error {
  override readonly name = 'StoreUnavailable'
}

/**
 * Timed out waiting for a lock that a batch needs, and nothing of the batch was done. Its users are then served one by
 * one.
 */
export class LockTimeout extends StoreUnavailable {}

/** An outage ends by itself, or when space is freed. The same request can be sent again. */
export function isOutage(error: unknown): error is StoreUnavailable | StoreFull {
  return error instanceof StoreUnavailable || error instanceof StoreFull
}

/** The engine refused a value. In a batch one item is at fault, so the batch is split to find it. */
export class BadValue extends Error {
  override readonly name = 'BadValue'
}

/** The places that can fill up: the database, or the folder of artifacts and archived logs. */
export const FULL_PLACES = ['store', 'artifacts'] as const
export type FullPlace = (typeof FULL_PLACES)[number]

const NEXT = 'Free space on it or enlarge it. Ichido then continues by itself, and you can send the same request again.'

/** A disk is full. Nothing of the request was stored. */
export class StoreFull extends AdvisedError {
  override readonly name = 'StoreFull'
  readonly place: FullPlace

  /** @param disk names the disk, for people: "that holds DATA_DIR". */
  constructor(place: FullPlace, disk: string, cause?: unknown) {
    super(`The disk ${disk} is full. ${NEXT}`, { cause })
    this.place = place
  }
}

/**
 * The innermost cause. Clients wrap it, and an address with several IPs wraps it in an AggregateError without a
 * message.
 */
export function innermost(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error instanceof AggregateError && error.errors.length > 0) return innermost(error.errors[0])
  if (error.cause !== undefined) return innermost(error.cause)
  return error.message || ('code' in error ? String(error.code) : error.name)
}

export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}

/** No blocks, no inodes, or the quota of the user or folder is used up. */
export function isDiskFull(error: unknown): boolean {
  return ['ENOSPC', 'EDQUOT'].includes(codeOf(error))
}

/** There is no such file or folder. */
export function isMissing(error: unknown): boolean {
  return codeOf(error) === 'ENOENT'
}

/** The names that the store's settings have for the caller. */
interface StoreNames {
  dataDir: string
  databaseUrl: string
  schema: string
}

export interface NotOpened {
  message: string
  advice: string
}

/** Says why a store could not be opened, and what to do; null if the error itself says so. */
export function whyNotOpened(error: unknown, dataDir: string | null, names: StoreNames): NotOpened | null {
  if (error instanceof AdvisedError) return null
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
