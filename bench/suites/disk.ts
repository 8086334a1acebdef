import { readFileSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createClient } from '@redis/client'
import pg from 'pg'
import { DATABASE_FILE } from '../../server/src/store/engines/sqlite/sqlite.ts'
import { compare, type Found } from '../contest/compare.ts'
import { drain } from '../contest/drain.ts'
import { FORMS, LIMITS, labelsOf, type Name, PEERS, storeFor } from '../contest/field.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const NAMES: readonly Name[] = [...PEERS, 'ours', 'sqlite', ...LIMITS]

interface Written {
  /** The bytes of the log: WAL, AOF, or all writes of the process. */
  log: number
  /** The size of the store. Redis keeps its store in memory. */
  store: number | null
  /** Rows that VACUUM has not removed yet. */
  dead: number | null
}

/** Submits and works off many jobs, and counts the bytes of log and store for each job, and the dead rows that are left. */
export async function disk(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  say(`bytes of ${size.written.toLocaleString('en-US')} jobs: ${labelsOf(NAMES)}`)
  const found = new Map<Name, Written>()
  for (const name of NAMES.filter((each) => !stage.absent.has(each))) {
    const written = FORMS[name].store === 'redis' ? await onRedis(stage, name) : await onDisk(stage, name)
    if (written !== null) found.set(name, written)
  }
  const of = (part: (written: Written) => number | null): Found =>
    Object.fromEntries(
      [...found].flatMap(([name, written]) => {
        const value = part(written)
        return value === null ? [] : [[name, [value]]]
      }),
    )
  const perJob = (bytes: number | null) => (bytes === null ? null : bytes / size.written)
  const jobs = size.written.toLocaleString('en-US')
  return [
    ...compare({ what: 'log written for a job', unit: 'bytes', found: of(({ log }) => perJob(log)) }),
    ...compare({ what: 'store grown by a job', unit: 'bytes', found: of(({ store }) => perJob(store)) }),
    // A ratio to no dead rows at all would be infinite.
    ...compare({
      what: `dead rows after ${jobs} jobs`,
      unit: 'rows',
      found: of(({ dead }) => (dead === null ? null : Math.max(1, dead))),
    }),
  ].map((row) => (row.rival === 'self' ? { ...row, target: null } : row))
}

async function work(
  { size, packages, enter }: Stage,
  name: Name,
  url: string,
  count: (pid: number) => Promise<Written>,
) {
  const entrant = await enter({ program: FORMS[name].program, url, packages })
  const pid = entrant.pid ?? process.pid
  const isOfProcess = FORMS[name].store === 'sqlite'
  let closed = false
  const close = async () => {
    if (!closed) await entrant.close()
    closed = true
  }
  try {
    const before = await count(pid)
    await drain([entrant], { jobs: size.written, pace: 'bulk', handlerMs: 0 })
    // A connection reports its dead rows at the latest when it ends.
    if (!isOfProcess) await close()
    await sleep(size.settleMs)
    const after = await count(pid)
    const grown = (part: 'store' | 'dead') => (after[part] === null ? null : after[part] - (before[part] ?? 0))
    return { log: after.log - before.log, store: grown('store'), dead: grown('dead') }
  } finally {
    await close()
  }
}

async function onDisk(stage: Stage, name: Name): Promise<Written | null> {
  const url = await storeFor(stage, 'disk', name)
  return FORMS[name].store === 'sqlite' ? onSqlite(stage, name, url) : onPostgres(stage, name, url)
}

async function onPostgres(stage: Stage, name: Name, url: string): Promise<Written> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return await work(stage, name, url, async () => {
      const { rows } = await client.query<Record<keyof Written, string>>(
        `SELECT pg_current_wal_lsn() - '0/0' AS log, pg_database_size(current_database()) AS store,
          (SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables) AS dead`,
      )
      const [row] = rows
      return { log: Number(row?.log), store: Number(row?.store), dead: Number(row?.dead) }
    })
  } finally {
    await client.end()
  }
}

/**
 * SQLite uses the pages of its log again, so the system counts what the process has written. Only Linux does. It counts the calls,
 * because a file in memory has no disk.
 */
async function onSqlite(stage: Stage, name: Name, url: string): Promise<Written | null> {
  if (process.platform !== 'linux') return null
  const file = fileURLToPath(`${url}/${DATABASE_FILE}`)
  return work(stage, name, url, async (pid) => {
    const [, bytes] = /^wchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8')) ?? []
    return { log: Number(bytes), store: statSync(file).size, dead: null }
  })
}

/** This Redis does not compact its log, which then contains every write. */
async function onRedis(stage: Stage, name: Name): Promise<Written> {
  const redis = await stage.ownRedis({ 'auto-aof-rewrite-percentage': '0' })
  const client = await createClient({ url: redis.url }).connect()
  try {
    return await work(stage, name, `${redis.url}#disk`, async () => {
      const [, bytes] = /^aof_current_size:(\d+)/m.exec(await client.info('persistence')) ?? []
      return { log: Number(bytes), store: null, dead: null }
    })
  } finally {
    client.destroy()
    await redis.stop()
  }
}
