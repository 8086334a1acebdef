import { sleep } from '@ichido/sdk/world'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Pgbouncer, startPgbouncer } from '../../../../scripts/services/pgbouncer.ts'
import type { Postgres, Replica } from '../../../../scripts/services/postgres.ts'
import { privatePostgres } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { killAll, serve } from '../../../src/cli/testing/cli.ts'
import { check, keptIn, Submitters } from '../../../src/cli/testing/submitters.ts'
import { StoreUnavailable } from '../../../src/core/node/store-errors.ts'
import { realWorld } from '../../../src/node/world.ts'
import { openPostgres, type PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { finished, leasesFor, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** The standby is down, and the test cancels each COMMIT's wait for it. PostgreSQL then reports success. */

const CANCELED = size(20, 400)
const ACKNOWLEDGED = size(50, 500)

let primary: Postgres
let standby: Replica
let pooler: Pgbouncer
let admin: pg.Client

beforeAll(async () => {
  primary = await privatePostgres({ tcp: true })
  standby = await primary.startReplica()
  pooler = await startPgbouncer({ target: primary.tcpUrl ?? '', mode: 'transaction', poolSize: 10 })
  admin = await connectAdmin()
})
afterAll(async () => {
  await killAll()
  await pooler.stop()
  await admin.end()
  await primary.stop()
  await standby.stop()
})

async function connectAdmin(): Promise<pg.Client> {
  const client = new pg.Client(primary.url)
  client.on('error', () => {})
  await client.connect()
  return client
}

const WAITING = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

/** Cancels the waits for the standby until `count` of them are canceled or `done` returns true. */
async function cancelWaits(count: number, done = () => false): Promise<void> {
  for (let canceled = 0; canceled < count && !done(); await sleep(realWorld, 5)) {
    canceled += (await admin.query(WAITING)).rowCount ?? 0
  }
}

/** A store whose clock advances only while it sleeps between retries, or never: then it does not give up. */
function openPatient(url: string, givesUp: boolean): Promise<PostgresStore> {
  let passedMs = 0
  return openPostgres({
    url,
    now: Date.now,
    monotonic: () => passedMs,
    async sleep(ms) {
      if (givesUp) passedMs += ms
    },
  })
}

describe.each(['direct', 'pooled'])('over %s connections', (how) => {
  async function open(givesUp: boolean): Promise<PostgresStore> {
    const url = how === 'pooled' ? pooler.through(primary.tcpUrl ?? '') : primary.url
    const store = await openPatient(url, givesUp)
    expect(await store.health()).toMatchObject({ pooled: how === 'pooled' })
    return store
  }

  test('no write is acknowledged before the standby has it, and each takes effect once', async () => {
    const store = await open(false)
    const scenes = Array.from({ length: 3 }, () => new Scene(store))
    const [plain, leasing, ending] = scenes as [Scene, Scene, Scene]
    await Promise.all(scenes.map((scene) => scene.submitted()))
    const lease = await ending.running()
    const [alone, labelled] = [plain.item(), plain.item({ key: 'k', labels: { a: 'b' } })]
    await standby.kill9()
    const answered: string[] = []
    const writes = [
      store.write(submitJobs([alone], renderForTest)),
      store.write(submitJobs([labelled], renderForTest)),
      store.write(leasesFor([leasing.leaseItem()])),
      store.write(finishBatch([ending.endItem(lease, finished())])),
    ]
    writes.forEach((write, i) => {
      void write.then(() => answered.push(`write ${i}`))
    })
    await cancelWaits(CANCELED / 2, () => answered.length > 0)
    expect(answered).toEqual([])
    await standby.restart()
    const [first, second, leased, ended] = await Promise.all(writes)
    expect([first, second]).toMatchObject([[{ jobId: alone.jobId }], [{ jobId: labelled.jobId }]])
    expect(leased).toMatchObject([[{ attempt: 1 }]])
    expect(ended).toMatchObject([{ state: 'SUCCEEDED' }])
    expect(await sql(store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', plain.userId)).toHaveLength(3)
    await store.close()
  })

  test('a retry of a write that was given up also waits for the standby', async () => {
    const store = await open(true)
    const scene = new Scene(store)
    const lease = await scene.running()
    const [item, end] = [scene.item({ key: 'k' }), finishBatch([scene.endItem(lease, finished())])]
    await standby.kill9()
    const given = Promise.allSettled([store.write(submitJobs([item], renderForTest)), store.write(end)])
    let over = false
    void given.then(() => {
      over = true
    })
    await cancelWaits(Number.POSITIVE_INFINITY, () => over)
    for (const settled of await given)
      expect(settled).toMatchObject({ status: 'rejected', reason: expect.any(StoreUnavailable) })
    const other = await openPatient(primary.url, true)
    const answered: string[] = []
    const repeats = [store.write(end), other.write(submitJobs([scene.item({ key: 'k' })], renderForTest))]
    for (const repeat of repeats) void repeat.then(([outcome]) => answered.push(String(outcome?.kind)))
    await cancelWaits(6, () => answered.length > 0)
    expect(answered).toEqual([])
    await standby.restart()
    await Promise.all(repeats)
    expect(answered.toSorted()).toEqual(['repeated', 'replayed'])
    await Promise.all([store.close(), other.close()])
  })
})

test('promoting a standby that was down loses nothing acknowledged', async () => {
  const { username, password } = new URL(primary.tcpUrl ?? '')
  const { pathname } = new URL(await primary.createDatabase('promoted'))
  const hosts = [primary, standby].map(({ port }) => `127.0.0.1:${port}`)
  const databaseUrl = `postgres://${username}:${password}@${hosts}${pathname}?target_session_attrs=read-write`
  const server = await serve({ DATABASE_URL: databaseUrl })
  const submitters = new Submitters(server.url)
  void server.ended.then(({ stderr }) => submitters.fail(new Error(`The server ended: ${stderr}`)))
  try {
    await submitters.more(ACKNOWLEDGED)
    await standby.kill9()
    await cancelWaits(CANCELED)
    await primary.kill9()
    await standby.restart()
    await standby.promote()
    await submitters.more(ACKNOWLEDGED)
  } finally {
    await submitters.stop()
  }
  expect((await server.stop()).stderr).not.toMatch(/"level":50|a request failed/)
  check(submitters, await keptIn(standby.url.replace('/postgres?', `${pathname}?`)))
})
