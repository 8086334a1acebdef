import pg from 'pg'
import type { Browser } from 'playwright-core'
import { encodeCursor } from '../../server/src/contract/common.ts'
import { openStore } from '../../server/src/node/start-node.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { storageOf } from '../contest/contestant.ts'
import { addressesOf } from '../dashboard/addresses.ts'
import { type Asked, firstPage, openBrowser, recordCalls } from '../dashboard/browser.ts'
import { fillDashboard } from '../dashboard/fill.ts'
import { LETTERS } from '../dashboard/rows.ts'
import { openViewers, type Shown, VIEWERS } from '../dashboard/viewers.ts'
import { type Filling, filledIdOf } from '../fill.ts'
import { HttpConnection } from '../ichido/http-connection.ts'
import { type ServerProcess, serve } from '../ichido/server-process.ts'
import { cpuMsOf, parentOf } from '../machine.ts'
import { interleave, median, quantile, time } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Size, Stage } from '../stage.ts'
import { power } from './power.ts'

const CALL_MS = 100
const GROWTH = 2
const FIRST_PAGE_MS = 1_000
/** Of a core. */
const VIEWERS_PERCENT = 5
const LAST_ROWS = 50
/** Of each call in each round. */
const TIMES_MAX = 10
/** The load beside the open dashboards: 50 jobs a second. */
const LOAD = { everyMs: 20, pace: 'prompt', handlerMs: 20, tells: true, backlog: 0, long: 0 } as const

type Engine = 'PostgreSQL' | 'SQLite'

/** The calls of each page with few jobs and with many, the first page, and what open dashboards cost. */
export async function dashboard(stage: Stage): Promise<Comparison[]> {
  const browser = await openBrowser()
  try {
    return [...(await onEngine(stage, browser, 'PostgreSQL')), ...(await onEngine(stage, browser, 'SQLite'))]
  } finally {
    await browser.close()
  }
}

interface Filled {
  url: string
  filling: Filling
  server: ServerProcess
}

async function onEngine(stage: Stage, browser: Browser, engine: Engine): Promise<Comparison[]> {
  const { size, say } = stage
  say(
    `${engine}: filling stores with ${power(size.few)} and ${power(size.shown)} jobs, and ${power(LETTERS)} dead letters`,
  )
  const few = await openFilled(stage, engine, 'dashboard_few', size.few)
  const many = await openFilled(stage, engine, 'dashboard_many', size.shown)
  try {
    say(`${engine}: the calls of each page`)
    const calls = await callsOf(size, browser, engine, { few, many })
    say(`${engine}: the first page, and ${VIEWERS} open dashboards`)
    return [...calls, await firstPages(size, browser, engine, many), ...(await viewed(stage, browser, engine, many))]
  } finally {
    for (const { server } of [few, many]) await server.stop()
  }
}

async function openFilled(stage: Stage, engine: Engine, name: string, count: number): Promise<Filled> {
  const url = engine === 'SQLite' ? stage.folder(name) : await stage.database(name)
  const store = await openStore({ storage: storageOf(url), world: realWorld, allowNoFsync: false })
  const filling = await fillDashboard(store, url, count)
  await store.close()
  // Autovacuum does the same some time after such a growth.
  if (engine === 'PostgreSQL') await connected(url, (client) => client.query('VACUUM (ANALYZE)'))
  return { url, filling, server: await serve(url, {}, stage.program) }
}

async function connected<T>(databaseUrl: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client(databaseUrl)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

type Both<T> = Readonly<Record<'few' | 'many', T>>

/** The paths that each page asks for. */
interface Pages {
  url: string
  paths: ReadonlyMap<string, readonly string[]>
}

/** A row for each page: its slowest call. The calls are those that the page makes in a browser. */
async function callsOf(size: Size, browser: Browser, engine: Engine, stores: Both<Filled>): Promise<Comparison[]> {
  const pages = { few: await pagesOf(size, browser, stores.few), many: await pagesOf(size, browser, stores.many) }
  const times = Math.min(size.calls, TIMES_MAX)
  const timed = (of: Pages) => async () => {
    const connection = await HttpConnection.open(of.url)
    const all = new Map<string, number[]>()
    for (const path of new Set([...of.paths.values()].flat())) {
      const ms: number[] = []
      for (let n = 0; n < times; n++) ms.push(await time(() => connection.get(path)))
      all.set(path, ms)
    }
    connection.close()
    return all
  }
  const found = await interleave(size, { few: timed(pages.few), many: timed(pages.many) })
  const slowest = (store: 'few' | 'many', name: string, q: number) =>
    found[store].map((round) => {
      const paths = pages[store].paths.get(name) ?? []
      return Math.max(...paths.map((path) => quantile(round.get(path) ?? [], q)))
    })
  const names = [...pages.many.paths.keys()]
  const rows = names.flatMap((name) => {
    const what = `${engine}: ${name}, slowest call, p50`
    const ours = slowest('many', name, 0.5)
    const few = { against: `${power(size.few)} jobs`, theirs: slowest('few', name, 0.5), target: { most: GROWTH } }
    const bound = { against: `at most ${CALL_MS} ms`, theirs: [CALL_MS], target: { most: 1 } }
    return [few, bound].map((side): Comparison => ({ what, unit: 'ms', rival: 'self', ours, ...side }))
  })
  const tails = names.map((name) => ({ name, ms: slowest('many', name, 0.99) }))
  const worst = tails.reduce((a, b) => (median(a.ms) > median(b.ms) ? a : b))
  return [...rows, bounded(`${engine}: the slowest call of all (${worst.name}), p99`, worst.ms, CALL_MS)]
}

const bounded = (what: string, ours: readonly number[], bound: number): Comparison => ({
  what,
  unit: 'ms',
  ours,
  against: `at most ${bound.toLocaleString('en-US')} ms`,
  rival: 'self',
  theirs: [bound],
  target: { most: 1 },
})

async function pagesOf(size: Size, browser: Browser, { server: { url }, filling }: Filled): Promise<Pages> {
  const connection = await HttpConnection.open(url)
  const paths = new Map<string, readonly string[]>()
  for (const [name, address] of [...(await addressesOf(connection))].slice(0, size.pages)) {
    const { calls } = await recordCalls(browser, url, address, 0)
    paths.set(name, [...calls.keys()])
  }
  connection.close()
  const lastPage = encodeCursor('jobs', filledIdOf(filling, LAST_ROWS + 1))
  paths.set('/jobs, its last page', [`/v1/jobs?limit=${LAST_ROWS}&cursor=${lastPage}`])
  return { url, paths }
}

async function firstPages(size: Size, browser: Browser, engine: Engine, { server }: Filled): Promise<Comparison> {
  const { ms } = await interleave(size, { ms: () => firstPage(browser, server.url) })
  return bounded(`${engine}: the first page in Chromium, ${power(size.shown)} jobs, without a cache`, ms, FIRST_PAGE_MS)
}

/** The CPU time of the server and of PostgreSQL while jobs are worked off, without open dashboards and with them. */
async function viewed(stage: Stage, browser: Browser, engine: Engine, { url, server }: Filled): Promise<Comparison[]> {
  const { watchMs } = stage.size
  const pages = await watchedPages(browser, server.url, watchMs)
  const postgres = engine === 'PostgreSQL' ? await postmasterOf(url) : null
  const load = await stage.enter({ program: 'ichido-http', url: server.url, packages: stage.packages })
  const measure = async () => {
    const before = cpuOf(server.pid, postgres)
    const began = performance.now()
    await load.paced({ ...LOAD, calls: Math.ceil(watchMs / LOAD.everyMs) })
    const percent = 100 / (performance.now() - began)
    const after = cpuOf(server.pid, postgres)
    return { server: (after.server - before.server) * percent, postgres: (after.postgres - before.postgres) * percent }
  }
  try {
    await measure()
    const without = await measure()
    const close = await openViewers(server.url, pages, watchMs)
    const used = await measure()
    await close()
    const row = (what: string, ours: number, theirs: number, more: number): Comparison => ({
      what: `${engine}: CPU of ${what} with ${VIEWERS} open dashboards, of a core`,
      unit: '%',
      ours: [ours],
      against: more === 0 ? 'without them' : `without them, and ${more} %`,
      rival: 'self',
      theirs: [theirs + more],
      target: more === 0 ? null : { most: 1 },
    })
    if (postgres === null) return [row('the server', used.server, without.server, VIEWERS_PERCENT)]
    const sum = (each: typeof used) => each.server + each.postgres
    return [
      row('the server and PostgreSQL', sum(used), sum(without), VIEWERS_PERCENT),
      row('the server alone', used.server, without.server, 0),
    ]
  } finally {
    await load.close()
  }
}

async function watchedPages(browser: Browser, url: string, watchMs: number): Promise<Record<Shown, Asked>> {
  const connection = await HttpConnection.open(url)
  const job = (await addressesOf(connection)).get('/jobs/:id, running') ?? ''
  connection.close()
  const watch = (address: string) => recordCalls(browser, url, address, watchMs)
  const [overview, jobs, running] = await Promise.all([watch('/'), watch('/jobs'), watch(job)])
  return { overview, jobs, job: running }
}

const cpuOf = (server: number, postgres: number | null) => ({
  server: cpuMsOf(server),
  postgres: postgres === null ? 0 : cpuMsOf(postgres),
})

/** The process of which all connections of the database server are children. */
function postmasterOf(databaseUrl: string): Promise<number> {
  return connected(databaseUrl, async (client) => {
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
    return parentOf(rows[0]?.pid ?? 0)
  })
}
