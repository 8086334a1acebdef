import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto'
import { isIP } from 'node:net'
import { resolve } from 'node:path'
import { createSecureContext } from 'node:tls'
import { tokenIn, withoutCredentials } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { DEFAULT_SHARDS, SHARDS_MAX } from '../core/events/event.ts'
import { readTime, unitOfSetting } from '../core/limits/duration.ts'
import { type FixedSettings, SETTING_NAMES, settingProblem, settingVariable } from '../core/limits/settings.ts'
import {
  type AllowedOrigins,
  addressProblem,
  ORIGIN_EXAMPLE,
  parseAllowedOrigins,
  REDIS_ADDRESS,
} from '../core/node/addresses.ts'
import { DEFAULT_ARTIFACT_BYTES_MAX } from '../core/run/artifact.ts'

/** The sources of settings: the environment, the working directory, and the files that they name. */
export interface Surroundings {
  env: Readonly<Record<string, string | undefined>>
  cwd: string
  /** Throws the errors of the file system. */
  readFile(path: string): string
}

export type StorageConfig =
  | { dataDir: string }
  | { databaseUrl: string; schema: string; databaseDirectUrl: string | undefined }

export interface StoreConfig {
  storage: StorageConfig
  allowNoFsync: boolean
}

export interface ServerConfig extends StoreConfig {
  artifacts: { folder: string | undefined; bytesMax: number }
  host: string
  port: number
  redisUrl: string | null
  /** Streams in Redis for each domain. */
  shards: number
  /** Stands before all names of keys and channels in Redis. */
  redisPrefix: string
  tls: { cert: string; key: string } | null
  /** The proxies whose X-Forwarded-* headers are trusted: none, all, or a list of addresses. */
  trustProxy: boolean | string
  publicUrl: string | null
  /** '' or '/prefix', never with a slash at the end. */
  basePath: string
  /** Null: only pages of the server's own origin. */
  allowedOrigins: AllowedOrigins | null
  logLevel: LogLevel
  mismatchStatus: 409 | 422
  /** Settings that the environment fixes. */
  settings: FixedSettings
}

interface ClientConfig {
  url: string
  token: string | undefined
}

/** True if only this machine can reach the address. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host)
}

/**
 * Says why the server must not run without a token; null if, according to its settings, only this machine can reach it.
 */
export function openModeProblem(
  config: Pick<ServerConfig, 'host' | 'trustProxy' | 'publicUrl' | 'basePath'>,
): string | null {
  const { host, trustProxy, publicUrl, basePath } = config
  if (!isLoopback(host)) return `${host} can be reached from other machines`
  const proxy = [
    ['TRUST_PROXY', trustProxy !== false],
    ['PUBLIC_URL', publicUrl !== null],
    ['BASE_PATH', basePath !== ''],
  ].find(([, isSet]) => isSet)
  return proxy === undefined ? null : `${proxy[0]} is set, so a proxy may bring requests from other machines`
}

export const DEFAULT_URL = 'http://127.0.0.1:8001'
export const DEFAULT_DATA_DIR = './data'

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
type LogLevel = (typeof LOG_LEVELS)[number]

/** One line for each wrong setting. A line begins with the variable's name. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
  readonly problems: readonly string[]

  constructor(problems: readonly string[]) {
    super(problems.join('\n'))
    this.problems = problems
  }
}

/** The value is part of the message, unless it may contain a password. */
const says = (what: string) => ({
  error: (issue: { input?: unknown }) => `must be ${what}, not ${JSON.stringify(issue.input)}`,
})
const secret = (what: string) => ({ error: `must be ${what}` })

const flag = z
  .enum(['0', '1', 'false', 'true'], says('1 or 0'))
  .default('0')
  .transform((text) => text === '1' || text === 'true')

const webUrl = z
  .url({
    protocol: /^https?$/,
    error: ({ input }) =>
      `must be an address like https://jobs.example.org, not ${JSON.stringify(withoutCredentials(String(input)))}`,
  })
  .transform((text) => text.replace(/\/+$/, ''))

const databaseUrl = z
  .string()
  .regex(/^postgres(ql)?:\/\//, secret('an address like postgres://user:password@host/database'))
  .superRefine((address, context) => {
    const message = addressProblem(address)
    if (message !== null) context.addIssue({ code: 'custom', message })
  })
  .optional()

const storeSettings = {
  DATA_DIR: z.string().default(DEFAULT_DATA_DIR),
  DATABASE_URL: databaseUrl,
  DATABASE_DIRECT_URL: databaseUrl,
  DATABASE_SCHEMA: z
    .string()
    .regex(/^[a-z_][a-z0-9_]{0,29}$/, says('a lower-case name of at most 30 letters, digits and underscores'))
    .default('ichido'),
  ALLOW_NO_FSYNC: flag,
}

const SHARDS_ARE = `a whole number from 1 to ${SHARDS_MAX}`

const serverSettings = {
  ...storeSettings,
  ARTIFACTS_DIR: z.string().optional(),
  ARTIFACT_BYTES_MAX: z
    .string()
    .regex(/^[1-9]\d{0,14}$/, says('a number of bytes'))
    .transform(Number)
    .default(DEFAULT_ARTIFACT_BYTES_MAX),
  HOST: z.string().default('127.0.0.1'),
  PORT: z
    .string()
    .regex(/^\d{1,5}$/, says('a whole number from 0 to 65535'))
    .transform(Number)
    .refine((port) => port <= 65_535, says('a whole number from 0 to 65535'))
    .default(8001),
  REDIS_URL: z
    .string()
    .regex(REDIS_ADDRESS, secret('an address like redis://host:6379, or redis+cluster://host:6379,host:6379'))
    .optional(),
  SHARDS: z
    .string()
    .regex(/^\d{1,3}$/, says(SHARDS_ARE))
    .transform(Number)
    .refine((shards) => shards >= 1 && shards <= SHARDS_MAX, says(SHARDS_ARE))
    .default(DEFAULT_SHARDS),
  REDIS_PREFIX: z
    .string()
    .regex(/^[A-Za-z0-9._:-]{0,64}$/, says('at most 64 letters, digits, dots, colons, dashes or underscores'))
    .default(''),
  TLS_CERT_FILE: z.string().optional(),
  TLS_KEY_FILE: z.string().optional(),
  TRUST_PROXY: z.string().default('false').transform(parseTrustProxy),
  PUBLIC_URL: webUrl
    .refine((url) => url === withoutCredentials(url), secret('an address without user name and password'))
    .optional(),
  BASE_PATH: z
    .string()
    .regex(/^\/[A-Za-z0-9._~/-]*$/, says('a path like /ichido'))
    .transform((text) => text.replace(/\/+$/, ''))
    .default(''),
  ALLOWED_ORIGINS: z.string().transform(readOrigins).optional(),
  LOG_LEVEL: z.enum(LOG_LEVELS, says(`one of ${LOG_LEVELS.join(', ')}`)).default('warn'),
  IDEMPOTENCY_MISMATCH_STATUS: z
    .enum(['409', '422'], says('409 or 422'))
    .default('409')
    .transform((text) => (text === '422' ? 422 : 409)),
}

const clientSettings = {
  ICHIDO_URL: webUrl.default(DEFAULT_URL),
  ICHIDO_TOKEN: z
    .string()
    .regex(/^[\x21-\x7e]+$/, secret('a token, without spaces or line breaks'))
    .optional(),
}

/** These can also be read from a file, so that they need not be in the environment. */
const SECRETS = ['DATABASE_URL', 'DATABASE_DIRECT_URL', 'REDIS_URL', 'ICHIDO_TOKEN']

export function readStoreConfig(surroundings: Surroundings): StoreConfig {
  return toStore(parse(storeSettings, surroundings), surroundings)
}

export function readServerConfig(surroundings: Surroundings): ServerConfig {
  const fixed = readFixed(surroundings)
  const found = parse(serverSettings, surroundings, fixed.problems)
  return {
    ...toStore(found, surroundings),
    artifacts: {
      folder: found.ARTIFACTS_DIR === undefined ? undefined : resolve(surroundings.cwd, found.ARTIFACTS_DIR),
      bytesMax: found.ARTIFACT_BYTES_MAX,
    },
    host: found.HOST,
    port: found.PORT,
    redisUrl: found.REDIS_URL ?? null,
    shards: found.SHARDS,
    redisPrefix: found.REDIS_PREFIX,
    tls: readTls(found.TLS_CERT_FILE, found.TLS_KEY_FILE, surroundings),
    trustProxy: found.TRUST_PROXY,
    publicUrl: found.PUBLIC_URL ?? null,
    basePath: found.BASE_PATH,
    allowedOrigins: found.ALLOWED_ORIGINS ?? null,
    logLevel: found.LOG_LEVEL,
    mismatchStatus: found.IDEMPOTENCY_MISMATCH_STATUS,
    settings: fixed.settings,
  }
}

export function readClientConfig(surroundings: Surroundings): ClientConfig {
  const { ICHIDO_URL, ICHIDO_TOKEN } = parse(clientSettings, surroundings)
  return { url: withoutCredentials(ICHIDO_URL), token: ICHIDO_TOKEN ?? tokenOf(ICHIDO_URL) }
}

function tokenOf(url: string): string | undefined {
  try {
    return tokenIn(url)
  } catch (error) {
    if (!(error instanceof TypeError)) throw error
    throw new ConfigError(['ICHIDO_URL has a password that is not a token; set ICHIDO_TOKEN instead'])
  }
}

/** Each setting has an environment variable of its name, in capitals. */
function readFixed(surroundings: Surroundings): { settings: FixedSettings; problems: string[] } {
  const { problems, values } = gather(SETTING_NAMES.map(settingVariable), surroundings)
  const settings: FixedSettings = {}
  for (const name of SETTING_NAMES) {
    const [variable, text] = [settingVariable(name), values[settingVariable(name)]]
    if (text === undefined) continue
    const unit = unitOfSetting(name)
    const value = unit === null ? plainNumber(text) : (readTime(text, unit) ?? Number.NaN)
    const problem = settingProblem(name, value)
    if (problem === null) settings[name] = value
    else problems.push(`${variable} ${problem}, not ${JSON.stringify(text)}`)
  }
  return { settings, problems }
}

const plainNumber = (text: string) => (/^\d+(\.\d+)?$/.test(text) ? Number(text) : Number.NaN)

function parse<Shape extends z.ZodRawShape>(
  shape: Shape,
  surroundings: Surroundings,
  others: readonly string[] = [],
): z.output<z.ZodObject<Shape>> {
  const { problems, values } = gather(Object.keys(shape), surroundings)
  const parsed = z.object(shape).safeParse(values)
  if (!parsed.success) problems.push(...parsed.error.issues.map((issue) => `${issue.path.join('.')} ${issue.message}`))
  problems.push(...others)
  if (problems.length > 0 || !parsed.success) throw new ConfigError(problems)
  return parsed.data
}

/** An empty variable counts as not set: compose files and unit files leave variables out like this. */
function gather(names: readonly string[], surroundings: Surroundings) {
  const { env } = surroundings
  const problems: string[] = []
  const values: Record<string, string> = {}
  for (const name of names) {
    const fileName = `${name}_FILE`
    const file = SECRETS.includes(name) ? env[fileName] : undefined
    if (env[name] && file) problems.push(`${name} and ${fileName} are both set; keep one of them`)
    else if (env[name]) values[name] = env[name]
    else if (file) {
      const text = readNamed(fileName, file, surroundings, problems)
      if (text !== null) values[name] = text.trim()
    }
  }
  return { problems, values }
}

function readNamed(name: string, file: string, { cwd, readFile }: Surroundings, problems: string[]): string | null {
  const path = resolve(cwd, file)
  try {
    return readFile(path)
  } catch (error) {
    problems.push(`${name} names ${path}, which cannot be read: ${messageOf(error)}`)
    return null
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

function toStore(found: z.output<z.ZodObject<typeof storeSettings>>, { cwd }: Surroundings): StoreConfig {
  const { DATABASE_URL: databaseUrl, DATABASE_DIRECT_URL: databaseDirectUrl, DATABASE_SCHEMA: schema } = found
  if (databaseUrl === undefined && databaseDirectUrl !== undefined) {
    throw new ConfigError(['DATABASE_DIRECT_URL is set and DATABASE_URL is not; set DATABASE_URL, too'])
  }
  const storage =
    databaseUrl === undefined ? { dataDir: resolve(cwd, found.DATA_DIR) } : { databaseUrl, schema, databaseDirectUrl }
  return { storage, allowNoFsync: found.ALLOW_NO_FSYNC }
}

function readTls(certFile: string | undefined, keyFile: string | undefined, surroundings: Surroundings) {
  if (certFile === undefined && keyFile === undefined) return null
  if (certFile === undefined || keyFile === undefined) {
    const [set, missing] =
      certFile === undefined ? ['TLS_KEY_FILE', 'TLS_CERT_FILE'] : ['TLS_CERT_FILE', 'TLS_KEY_FILE']
    throw new ConfigError([`${set} is set and ${missing} is not; TLS needs both`])
  }
  const problems: string[] = []
  const cert = readNamed('TLS_CERT_FILE', certFile, surroundings, problems)
  const key = readNamed('TLS_KEY_FILE', keyFile, surroundings, problems)
  if (cert !== null && key !== null) {
    const names = (name: string, file: string) => `${name} names ${resolve(surroundings.cwd, file)}, which`
    problems.push(...tlsProblems({ cert, key }, names('TLS_CERT_FILE', certFile), names('TLS_KEY_FILE', keyFile)))
  }
  if (cert === null || key === null || problems.length > 0) throw new ConfigError(problems)
  return { cert, key }
}

/** Finds what OpenSSL would report only when the server listens, as "no start line" or "key values mismatch". */
function tlsProblems(tls: { cert: string; key: string }, certIs: string, keyIs: string): string[] {
  const cert = certificateOf(tls.cert)
  const key = privateKeyOf(tls.key)
  const problems = [
    ...(cert === null ? [`${certIs} holds no certificate`] : []),
    ...(typeof key === 'string' ? [`${keyIs} ${key}`] : []),
  ]
  if (cert === null || typeof key === 'string') return problems
  if (!cert.checkPrivateKey(key)) return [`${keyIs} is not the key of that certificate`]
  try {
    createSecureContext(tls)
    return []
  } catch (error) {
    return [`${certIs} cannot be used: ${messageOf(error)}`]
  }
}

function certificateOf(text: string): X509Certificate | null {
  try {
    return new X509Certificate(text)
  } catch {
    return null
  }
}

/** Returns the key, or what is wrong with it. */
function privateKeyOf(text: string): KeyObject | string {
  try {
    return createPrivateKey(text)
  } catch {
    // The error's code differs between versions of Node.js.
    return /^(-----BEGIN|Proc-Type:).*\bENCRYPTED\b/m.test(text)
      ? 'is locked with a passphrase; TLS needs it without one'
      : 'holds no private key'
  }
}

function readOrigins(text: string, context: z.core.$RefinementCtx<string>): AllowedOrigins {
  const origins = parseAllowedOrigins(text)
  if (!('wrong' in origins)) return origins
  context.addIssue({
    code: 'custom',
    message: `must be * or origins like ${ORIGIN_EXAMPLE}, without a path, separated by commas; ${JSON.stringify(origins.wrong)} is not an origin`,
  })
  return z.NEVER
}

/** Reads `true`, `false`, or addresses and networks separated by commas. */
function parseTrustProxy(text: string, context: z.core.$RefinementCtx<string>): boolean | string {
  if (text === 'true' || text === 'false') return text === 'true'
  const addresses = text.split(',').map((part) => part.trim())
  if (addresses.every(isNetwork)) return addresses.join(',')
  context.addIssue({
    code: 'custom',
    message: `must be true, false, or addresses like 10.0.0.0/8 separated by commas, not ${JSON.stringify(text)}`,
  })
  return z.NEVER
}

function isNetwork(text: string): boolean {
  const [address = '', bits, ...more] = text.split('/')
  const bitsMax = { 4: 32, 6: 128 }[isIP(address)]
  if (bitsMax === undefined || address.includes('%') || more.length > 0) return false
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= bitsMax)
}
