import { accessSync, constants, existsSync, statfsSync } from 'node:fs'
import { dirname } from 'node:path'
import { NODE_MIN, nodeTooOld } from '../../core/node/node.ts'
import { innermost } from '../../core/node/store-errors.ts'
import {
  ConfigError,
  openModeProblem,
  readServerConfig,
  type ServerConfig,
  type StorageConfig,
} from '../../node/config.ts'
import {
  directTrouble,
  EVICTS_ADVICE,
  examineRedis,
  exposedFiles,
  isAuthRequired,
  type RedisState,
  type StoreHealth,
  StoreInUse,
  StoreRefused,
  schemaState,
} from '../../node/maintenance.ts'
import { connect, processEnv } from '../connection/connect.ts'
import { opening, pooling, tlsProblem, withStore } from '../connection/store.ts'
import { tokenLine } from '../output/banner.ts'
import { Failure } from '../output/exit.ts'
import { commandLine, startLine } from '../self.ts'

/** The result of one check. */
export interface Finding {
  check: string
  /** `unchecked`: the check was not possible, which alone is not a problem. */
  status: 'ok' | 'warning' | 'broken' | 'unchecked'
  message: string
  advice?: string
}

const SKEW_MAX_MS = 1_000
const ANSWER_WITHIN_MS = 5_000
const ANSWER_CLIP = 200
const DISK_LOW_BYTES = 1024 ** 3
const DISK_FULL_BYTES = 100 * 1024 ** 2

/** Runs all checks; changes nothing. */
export async function examine(): Promise<Finding[]> {
  const findings = [examineNode()]
  try {
    const config = readServerConfig(processEnv)
    findings.push(...examineSettings(config))
    if ('dataDir' in config.storage) findings.push(...examineFolder(config.storage.dataDir))
    findings.push(...examineFiles(config), ...(await examineStore(config)))
    if (config.redisUrl !== null) findings.push(...(await findInRedis(config.redisUrl)))
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    findings.push(...error.problems.map((problem) => broken('settings', problem, 'Change or unset that variable.')))
  }
  return [...findings, ...(await examineServer())]
}

const ok = (check: string, message: string): Finding => ({ check, status: 'ok', message })
const warning = (check: string, message: string, advice: string): Finding => ({
  check,
  status: 'warning',
  message,
  advice,
})
const broken = (check: string, message: string, advice: string): Finding => ({
  check,
  status: 'broken',
  message,
  advice,
})

const unchecked = (check: string, why: string): Finding => ({
  check,
  status: 'unchecked',
  message: `not checked: ${why}`,
})

function examineNode(): Finding {
  const { node } = process.versions
  if (nodeTooOld(node) === null) return ok('node', `Node ${node}`)
  return broken('node', `Node ${node} is too old`, `Install Node ${NODE_MIN} or newer.`)
}

async function findInRedis(url: string): Promise<Finding[]> {
  const { trouble, memory } = await examineRedis(url)
  if (trouble !== null) {
    const advice = 'Until Redis works, events are read from the store. Check REDIS_URL and the server that it names.'
    return [warning('redis', `Redis cannot be used: ${trouble}`, advice)]
  }
  return [ok('redis', 'Redis answers'), examineMemory(memory)]
}

function examineMemory(memory: RedisState['memory']): Finding {
  if (memory === null) return unchecked('redis memory', 'Redis does not let this user call INFO')
  const evicting = memory.find(({ evicts }) => evicts)
  if (evicting !== undefined) {
    return warning('redis memory', `Redis drops keys when its memory is full: ${evicting.policy}`, EVICTS_ADVICE)
  }
  if (memory.some(({ full }) => full)) {
    return warning(
      'redis memory',
      'Redis is full, so events wait in the store',
      'Raise maxmemory, or delete other keys.',
    )
  }
  return ok('redis memory', 'Redis has room, and drops no keys')
}

function examineSettings(config: ServerConfig): Finding[] {
  const findings = [ok('settings', 'all settings can be read')]
  if (config.allowNoFsync) {
    findings.push(
      warning(
        'settings',
        'ALLOW_NO_FSYNC lets the store lose acknowledged jobs',
        'Unset it unless the data may be lost.',
      ),
    )
  }
  const tls = tlsProblem(config.storage)
  if (tls !== null) findings.push(warning('tls', tls.message, tls.advice))
  return findings
}

function examineFolder(dataDir: string): Finding[] {
  let folder = dataDir
  while (!existsSync(folder)) folder = dirname(folder)
  try {
    accessSync(folder, constants.W_OK | constants.X_OK)
  } catch {
    return [
      broken('disk', `${folder} cannot be written to`, 'Set DATA_DIR to another folder, or give this user the right.'),
    ]
  }
  const { bavail, bsize } = statfsSync(folder)
  const free = bavail * bsize
  const text = `${(free / 1024 ** 3).toFixed(1)} GB are free in ${folder}`
  if (free < DISK_FULL_BYTES) return [broken('disk', text, 'Free disk space: a store on a full disk accepts no jobs.')]
  if (free < DISK_LOW_BYTES) return [warning('disk', text, 'Free disk space soon.')]
  return [ok('disk', text)]
}

/** Windows has no file modes. */
function examineFiles(config: ServerConfig): Finding[] {
  if (process.getuid === undefined) return []
  const { storage } = config
  if ('dataDir' in storage && !existsSync(storage.dataDir)) return []
  const exposed = exposedFiles(config)
  if (exposed.length === 0) return [ok('files', "no other user of this machine can read the server's files")]
  return exposed.map(({ path, mode, mend }) =>
    warning('files', `other users of this machine can read ${path} (mode ${mode})`, `Run \`${mend}\`.`),
  )
}

async function examineStore(config: ServerConfig): Promise<Finding[]> {
  let schema: Finding | undefined
  try {
    const state = await opening(config, schemaState(config.storage))
    schema = examineSchema(state, config.storage)
    if (state.verdict !== 'current' && state.verdict !== 'ahead') return [schema]
    const [health, authRequired] = await withStore(
      config,
      async (store) => [await store.health(), await isAuthRequired(store)] as const,
    )
    const connections = await examineConnections(health, config.storage)
    return [...examineHealth(health), ...connections, schema, examineCredentials(config, authRequired)]
  } catch (error) {
    if (error instanceof StoreInUse) {
      return [
        ok('store', `in use by a running server${'dataDir' in config.storage ? `: ${config.storage.dataDir}` : ''}`),
        ...(schema === undefined ? [] : [schema]),
        ...['durability', 'clock', 'access'].map((check) => unchecked(check, 'in use by the server')),
      ]
    }
    if (error instanceof StoreRefused) return [{ check: 'store', status: 'broken', message: error.message }]
    if (error instanceof Failure) return [broken('store', error.message, error.advice ?? '')]
    return [broken('store', innermost(error), `Restore a backup: \`${commandLine('backup FILE --restore')}\``)]
  }
}

type SchemaState = Awaited<ReturnType<typeof schemaState>>

function examineSchema({ verdict, found, known }: SchemaState, storage: StorageConfig): Finding {
  const where = 'dataDir' in storage ? storage.dataDir : `the schema ${storage.schema}`
  switch (verdict) {
    case 'none':
      return warning('schema', `there is no store in ${where} yet`, `The first start makes it: \`${startLine()}\``)
    case 'current':
      return ok('schema', `version ${found}`)
    case 'migrate':
      return warning('schema', `version ${found}; this Ichido knows ${known}`, `Run \`${commandLine('migrate')}\`.`)
    case 'ahead':
      return warning('schema', `version ${found}, one ahead of this Ichido`, 'Upgrade this node too.')
    case 'refuse':
      return broken(
        'schema',
        `version ${found}; this Ichido knows ${known}`,
        'Upgrade this node, or restore an older backup.',
      )
  }
}

function examineHealth({ engine, location, durability, durable, clockSkewMs }: StoreHealth): Finding[] {
  const settings = Object.entries(durability).map(([name, value]) => `${name} ${value}`)
  const skew = `the store's clock differs by ${clockSkewMs} ms`
  return [
    ok('store', `${engine === 'sqlite' ? 'SQLite' : 'PostgreSQL'}: ${location}`),
    durable
      ? ok('durability', settings.join(', '))
      : broken(
          'durability',
          settings.join(', '),
          'Turn on fsync and full_page_writes: without them, acknowledged jobs can get lost.',
        ),
    Math.abs(clockSkewMs) <= SKEW_MAX_MS
      ? ok('clock', skew)
      : warning('clock', skew, 'Run NTP on both machines: until then jobs start early or late, but never twice.'),
  ]
}

async function examineConnections({ pooled }: StoreHealth, storage: StorageConfig): Promise<Finding[]> {
  if ('dataDir' in storage) return []
  const { message, advice } = pooling(pooled, storage)
  const { databaseDirectUrl } = storage
  const trouble = databaseDirectUrl === undefined ? null : await directTrouble(databaseDirectUrl)
  return [
    advice === undefined ? ok('pooler', message) : warning('pooler', message, advice),
    ...(trouble === null
      ? []
      : [
          warning(
            'wake-ups',
            `DATABASE_DIRECT_URL cannot be used: ${trouble}`,
            'Set it to the address of PostgreSQL itself. Until then, wake-ups come by polling, once a second.',
          ),
        ]),
  ]
}

function examineCredentials(config: ServerConfig, authRequired: boolean): Finding {
  if (authRequired) return ok('access', 'tokens are required')
  const problem = openModeProblem(config)
  if (problem === null) return ok('access', 'open mode: calls from this machine need no token until you make one')
  return broken('access', `serve will not start without any token: ${problem}`, `Make one: ${tokenLine(config)}`)
}

async function examineServer(): Promise<Finding[]> {
  try {
    const { url, ask } = connect()
    const response = await reach(`${url}/readyz`)
    if (typeof response === 'string') {
      const advice = `Start it with \`${startLine()}\`, or set ICHIDO_URL to its URL.`
      return [warning('server', `no server answers at ${url}: ${response}`, advice)]
    }
    if (!response.ok) {
      const why = (await response.text()).slice(0, ANSWER_CLIP)
      return [broken('server', `${url} is not ready: ${response.status} ${why}`, 'Check its log and its store.')]
    }
    await ask('GET', '/v1/jobs?limit=1')
    return [ok('server', `${url} is ready and accepts this token`)]
  } catch (error) {
    if (error instanceof ConfigError) {
      return error.problems.map((problem) => broken('settings', problem, 'Change or unset that variable.'))
    }
    return [broken('server', innermost(error), 'Set ICHIDO_TOKEN to a token of that server.')]
  }
}

/** The answer, or the reason why there is none. */
async function reach(url: string): Promise<Response | string> {
  try {
    return await fetch(url, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) })
  } catch (error) {
    return innermost(error)
  }
}
