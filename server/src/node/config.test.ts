import { createPrivateKey } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { selfSigned } from '../testing/http/certificate.ts'
import { ConfigError, openModeProblem, readClientConfig, readServerConfig, readStoreConfig } from './config.ts'

function surroundings(env: Record<string, string>, files: Record<string, string> = {}) {
  return {
    env,
    cwd: '/srv/app',
    readFile(path: string): string {
      const text = files[path]
      if (text === undefined) throw new Error(`ENOENT: no such file, open '${path}'`)
      return text
    },
  }
}

function problemsOf(env: Record<string, string>, files: Record<string, string> = {}): readonly string[] {
  try {
    readServerConfig(surroundings(env, files))
  } catch (error) {
    if (error instanceof ConfigError) return error.problems
    throw error
  }
  return []
}

test('an empty environment is the embedded store on a loopback address', () => {
  expect(readServerConfig(surroundings({}))).toEqual({
    host: '127.0.0.1',
    port: 8001,
    storage: { dataDir: '/srv/app/data' },
    artifacts: { folder: undefined, bytesMax: 5 * 1024 ** 3 },
    allowNoFsync: false,
    redisUrl: null,
    shards: 4,
    redisPrefix: '',
    tls: null,
    trustProxy: false,
    publicUrl: null,
    basePath: '',
    allowedOrigins: null,
    logLevel: 'warn',
    mismatchStatus: 409,
    settings: {},
  })
  expect(readClientConfig(surroundings({}))).toEqual({ url: 'http://127.0.0.1:8001', token: undefined })
})

test('every setting is read', () => {
  const tls = selfSigned()
  const files = { '/srv/app/cert.pem': tls.cert, '/etc/key.pem': tls.key }
  const env = {
    HOST: '0.0.0.0',
    PORT: '0',
    DATABASE_URL: 'postgres://u:p@db/x',
    DATABASE_DIRECT_URL: 'postgres://u:p@a,b/x?target_session_attrs=read-write',
    DATABASE_SCHEMA: 'jobs',
    REDIS_URL: 'redis://r:6379',
    SHARDS: '8',
    REDIS_PREFIX: 'team-a:',
    TLS_CERT_FILE: 'cert.pem',
    TLS_KEY_FILE: '/etc/key.pem',
    TRUST_PROXY: '10.0.0.0/8, ::1',
    PUBLIC_URL: 'https://jobs.example.org/',
    BASE_PATH: '/ichido/',
    ALLOWED_ORIGINS: 'https://app.example.org, http://localhost:5173,*',
    LOG_LEVEL: 'debug',
    IDEMPOTENCY_MISMATCH_STATUS: '422',
    ALLOW_NO_FSYNC: '1',
    ARTIFACTS_DIR: 'shared',
    ARTIFACT_BYTES_MAX: '1000',
    REAP_INTERVAL_SECONDS: '0.5',
    REAP_BATCH_MAX: '7',
    JOB_RETENTION_SECONDS: '7d',
    AUDIT_RETENTION_DAYS: '36h',
    PROMOTE_BATCH_MAX: '',
  }
  expect(readServerConfig(surroundings(env, files))).toEqual({
    host: '0.0.0.0',
    port: 0,
    storage: {
      databaseUrl: 'postgres://u:p@db/x',
      schema: 'jobs',
      databaseDirectUrl: 'postgres://u:p@a,b/x?target_session_attrs=read-write',
    },
    allowNoFsync: true,
    artifacts: { folder: '/srv/app/shared', bytesMax: 1000 },
    redisUrl: 'redis://r:6379',
    shards: 8,
    redisPrefix: 'team-a:',
    tls,
    trustProxy: '10.0.0.0/8,::1',
    publicUrl: 'https://jobs.example.org',
    basePath: '/ichido',
    allowedOrigins: { exact: new Set(['https://app.example.org', 'http://localhost:5173']), any: true },
    logLevel: 'debug',
    mismatchStatus: 422,
    settings: {
      reap_interval_seconds: 0.5,
      reap_batch_max: 7,
      job_retention_seconds: 604_800,
      audit_retention_days: 1.5,
    },
  })
})

test.each([
  ['PORT', 'http', 'PORT must be a whole number from 0 to 65535, not "http"'],
  ['PORT', '70000', 'PORT must be a whole number from 0 to 65535, not 70000'],
  ['PORT', '-1', 'PORT must be a whole number from 0 to 65535, not "-1"'],
  ['SHARDS', '0', 'SHARDS must be a whole number from 1 to 64, not 0'],
  [
    'REDIS_PREFIX',
    'a{b}:',
    'REDIS_PREFIX must be at most 64 letters, digits, dots, colons, dashes or underscores, not "a{b}:"',
  ],
  ['SHARDS', 'four', 'SHARDS must be a whole number from 1 to 64, not "four"'],
  ['ARTIFACT_BYTES_MAX', '5G', 'ARTIFACT_BYTES_MAX must be a number of bytes, not "5G"'],
  ['LOG_LEVEL', 'loud', 'LOG_LEVEL must be one of fatal, error, warn, info, debug, trace, silent, not "loud"'],
  ['IDEMPOTENCY_MISMATCH_STATUS', '418', 'IDEMPOTENCY_MISMATCH_STATUS must be 409 or 422, not "418"'],
  ['ALLOW_NO_FSYNC', 'maybe', 'ALLOW_NO_FSYNC must be 1 or 0, not "maybe"'],
  [
    'DATABASE_SCHEMA',
    'Drop Table',
    'DATABASE_SCHEMA must be a lower-case name of at most 30 letters, digits and underscores, not "Drop Table"',
  ],
  [
    'PUBLIC_URL',
    'jobs.example.org',
    'PUBLIC_URL must be an address like https://jobs.example.org, not "jobs.example.org"',
  ],
  ['BASE_PATH', 'ichido', 'BASE_PATH must be a path like /ichido, not "ichido"'],
  [
    'TRUST_PROXY',
    'the one in front',
    'TRUST_PROXY must be true, false, or addresses like 10.0.0.0/8 separated by commas, not "the one in front"',
  ],
  ['REAP_INTERVAL_SECONDS', '31', 'REAP_INTERVAL_SECONDS must be a number from 0.05 to 30, not "31"'],
  ['REAP_INTERVAL_SECONDS', '-1', 'REAP_INTERVAL_SECONDS must be a number from 0.05 to 30, not "-1"'],
  ['REAP_INTERVAL_SECONDS', '0x5', 'REAP_INTERVAL_SECONDS must be a number from 0.05 to 30, not "0x5"'],
  ['REAP_INTERVAL_SECONDS', '1m', 'REAP_INTERVAL_SECONDS must be a number from 0.05 to 30, not "1m"'],
  ['REAP_BATCH_MAX', '2s', 'REAP_BATCH_MAX must be a whole number from 1 to 10000, not "2s"'],
  ['REAP_BATCH_MAX', '1.5', 'REAP_BATCH_MAX must be a whole number from 1 to 10000, not "1.5"'],
  ['TLS_CERT_FILE', 'cert.pem', 'TLS_CERT_FILE is set and TLS_KEY_FILE is not; TLS needs both'],
  ['TLS_KEY_FILE', 'key.pem', 'TLS_KEY_FILE is set and TLS_CERT_FILE is not; TLS needs both'],
])('%s=%s is refused by name', (name, value, problem) => {
  expect(problemsOf({ [name]: value })).toEqual([problem])
})

test.each([
  'app.example.org',
  'https://app.example.org/',
  'https://app.example.org/app',
  'https://App.example.org',
  'https://app.example.org:443',
  'https://*.example.org/x',
  'ftp://app.example.org',
  'null',
  'https://user@app.example.org',
])('ALLOWED_ORIGINS refuses %s, which is not an origin', (wrong) => {
  expect(problemsOf({ ALLOWED_ORIGINS: `https://ok.example.org,${wrong}` })).toEqual([
    'ALLOWED_ORIGINS must be * or origins like https://app.example.org, without a path, separated by commas; ' +
      `${JSON.stringify(wrong)} is not an origin`,
  ])
})

test('a value that may contain a password is not repeated', () => {
  const problems = problemsOf({ DATABASE_URL: 'mysql://root:hunter2@db', REDIS_URL: 'http://:hunter2@r' })
  expect(problems).toEqual([
    'DATABASE_URL must be an address like postgres://user:password@host/database',
    'REDIS_URL must be an address like redis://host:6379, or redis+cluster://host:6379,host:6379',
  ])
})

test('all wrong settings are named at once', () => {
  expect(problemsOf({ PORT: 'x', LOG_LEVEL: 'y', BASE_PATH: 'z', REAP_BATCH_MAX: '0' })).toHaveLength(4)
})

test('an empty variable counts as not set', () => {
  expect(readServerConfig(surroundings({ PORT: '', DATABASE_URL: '', HOST: '' })).port).toBe(8001)
})

test.each([
  ['true', true],
  ['false', false],
  ['127.0.0.1', '127.0.0.1'],
  ['10.0.0.5, 192.168.0.0/16 ,fd00::/8,::1', '10.0.0.5,192.168.0.0/16,fd00::/8,::1'],
])('TRUST_PROXY=%s', (text, trustProxy) => {
  expect(readServerConfig(surroundings({ TRUST_PROXY: text })).trustProxy).toEqual(trustProxy)
})

test.each(['10.0.0.0/33', 'fd00::/129', '10.0.0', '10.0.0.1/8/8', '::1%lo', '10.0.0.1,', '1', 'localhost'])(
  'TRUST_PROXY=%s is not a list of addresses',
  (text) => {
    expect(problemsOf({ TRUST_PROXY: text })).toEqual([
      `TRUST_PROXY must be true, false, or addresses like 10.0.0.0/8 separated by commas, not "${text}"`,
    ])
  },
)

test('a secret can be read from a file', () => {
  const files = { '/run/secrets/db': 'postgres://u:p@db/x\n', '/srv/app/token': 'ichido_abc\n' }
  expect(readStoreConfig(surroundings({ DATABASE_URL_FILE: '/run/secrets/db' }, files)).storage).toEqual({
    databaseUrl: 'postgres://u:p@db/x',
    schema: 'ichido',
  })
  expect(readClientConfig(surroundings({ ICHIDO_TOKEN_FILE: 'token' }, files)).token).toBe('ichido_abc')
})

test('the direct address can be read from a file, and needs the other one', () => {
  const files = { '/run/direct': 'postgres://u:p@a/x\n' }
  const direct = { DATABASE_DIRECT_URL_FILE: '/run/direct' }
  const { storage } = readStoreConfig(surroundings({ DATABASE_URL: 'postgres://b/x', ...direct }, files))
  expect(storage).toMatchObject({ databaseDirectUrl: 'postgres://u:p@a/x' })
  expect(problemsOf(direct, files)).toEqual([
    'DATABASE_DIRECT_URL is set and DATABASE_URL is not; set DATABASE_URL, too',
  ])
})

test('an address that asks for a standby is refused, without its password', () => {
  expect(problemsOf({ DATABASE_URL: 'postgres://u:hunter2@a,b/x?target_session_attrs=standby' })).toEqual([
    'DATABASE_URL must not ask for target_session_attrs=standby: the store writes, so use read-write or leave it out',
  ])
})

test('a token in the client’s address is used and removed from the address', () => {
  const client = (env: Record<string, string>) => readClientConfig(surroundings(env))
  const ICHIDO_URL = 'https://ci:ichido_a-b@jobs.example.org/base/'
  expect(client({ ICHIDO_URL })).toEqual({ url: 'https://jobs.example.org/base', token: 'ichido_a-b' })
  expect(client({ ICHIDO_URL, ICHIDO_TOKEN: 'other' }).token).toBe('other')
  expect(client({ ICHIDO_URL: 'https://ci@jobs.example.org' })).toEqual({
    url: 'https://jobs.example.org',
    token: undefined,
  })
  const address = 'must be an address like https://jobs.example.org'
  expect(() => client({ ICHIDO_URL: 'https://ci:100%@host' })).toThrow('a password that is not a token')
  expect(() => client({ ICHIDO_URL: 'ftp://ci:secret@host' })).toThrow(`${address}, not "ftp://host"`)
  expect(() => client({ ICHIDO_URL: 'ci:secret@host' })).toThrow(`${address}, not "host"`)
  expect(problemsOf({ PUBLIC_URL: ICHIDO_URL })).toEqual([
    'PUBLIC_URL must be an address without user name and password',
  ])
})

test('a secret and its file together are refused, and so is a missing file', () => {
  expect(problemsOf({ DATABASE_URL: 'postgres://db/x', DATABASE_URL_FILE: '/f' })).toEqual([
    'DATABASE_URL and DATABASE_URL_FILE are both set; keep one of them',
  ])
  expect(problemsOf({ REDIS_URL_FILE: 'gone' })).toEqual([
    "REDIS_URL_FILE names /srv/app/gone, which cannot be read: ENOENT: no such file, open '/srv/app/gone'",
  ])
})

describe('a mismatched TLS key and certificate are refused', () => {
  const { cert, key } = selfSigned()
  const locked = createPrivateKey(key).export({ type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase: 'x' })
  const noCertificate = 'TLS_CERT_FILE names /srv/app/c.pem, which holds no certificate'
  const noKey = 'TLS_KEY_FILE names /srv/app/k.pem, which holds no private key'
  test.each([
    ['swapped', key, cert, [noCertificate, noKey]],
    ['empty', '', '', [noCertificate, noKey]],
    ['the key twice', key, key, [noCertificate]],
    ['the certificate twice', cert, cert, [noKey]],
    [
      'of two pairs',
      cert,
      selfSigned().key,
      ['TLS_KEY_FILE names /srv/app/k.pem, which is not the key of that certificate'],
    ],
    [
      'locked',
      cert,
      locked,
      ['TLS_KEY_FILE names /srv/app/k.pem, which is locked with a passphrase; TLS needs it without one'],
    ],
  ])('%s', (_, certText, keyText, problems) => {
    const files = { '/srv/app/c.pem': certText, '/srv/app/k.pem': String(keyText) }
    expect(problemsOf({ TLS_CERT_FILE: 'c.pem', TLS_KEY_FILE: 'k.pem' }, files)).toEqual(problems)
  })
})

test.each([
  [{}, null],
  [{ HOST: 'localhost', BASE_PATH: '/', TRUST_PROXY: 'false' }, null],
  [{ HOST: '0.0.0.0' }, '0.0.0.0 can be reached from other machines'],
  [{ TRUST_PROXY: 'true' }, 'TRUST_PROXY is set, so a proxy may bring requests from other machines'],
  [{ TRUST_PROXY: '127.0.0.1' }, 'TRUST_PROXY is set, so a proxy may bring requests from other machines'],
  [{ PUBLIC_URL: 'https://a.example' }, 'PUBLIC_URL is set, so a proxy may bring requests from other machines'],
  [{ BASE_PATH: '/ichido' }, 'BASE_PATH is set, so a proxy may bring requests from other machines'],
])('open mode with %j', (env, problem) => {
  expect(openModeProblem(readServerConfig(surroundings(env)))).toBe(problem)
})
