import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { full, size } from '../../../../scripts/testing/size.ts'
import { killAll, serve } from '../../../src/cli/testing/cli.ts'
import { serveHere } from '../../../src/cli/testing/serve-here.ts'
import { Restarted, Watcher } from '../../../src/cli/testing/tormented-events.ts'
import { HttpPublisher } from '../../../src/testing/http/http-publisher.ts'
import { REDIS_KINDS, RedisScene, testRedis } from '../../../src/testing/nodes/redis.ts'
import { ENGINES } from '../../../src/testing/services/services.ts'
import { until } from '../../../src/testing/store/store.ts'

const JOBS = size(4, 100)
const EVENTS_PER_JOB = size(30, 100)
/** Kills per victim. A server needs a second of CPU time to start. */
const KILLS = size(1, 5)
const PARTS = full ? ['gateway', 'router'] : ['gateway,router']
const REDIS_NODES_MAX = size(1, 3)
const TEST_WITHIN_MS = size(120_000, 600_000)
/** The job adds three events of its own: PENDING, RUNNING and SUCCEEDED. */
const LIFECYCLE = 3

const folder = mkdtempSync(join(tmpdir(), 'ichido-events-'))
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true, force: true })
})

interface Victim {
  kill(): Promise<void>
  start(): Promise<void>
  /** Resolves when the victim is working, so that the next kill interrupts it. */
  atWork(): Promise<unknown>
}

/** Publishes while a victim is killed, is down, and restarts. The next kill of another victim does not wait for the restart. */
async function torment(publisher: HttpPublisher, victims: readonly Victim[], kills: number): Promise<void> {
  const turns = Array.from({ length: kills }, () => victims).flat()
  const coming = new Map<Victim, Promise<void>>()
  const parts = 1 + turns.length * 3
  let part = 0
  const publish = () => publisher.publish(shareOf(part++, parts))
  await publish()
  for (const victim of turns) {
    await coming.get(victim)
    await victim.atWork()
    const killed = publish()
    await victim.kill()
    const away = publish()
    // If the only victim is the server that accepts events, the publishes must wait for its restart.
    if (victims.length > 1) await Promise.all([killed, away])
    const started = victim.start()
    started.catch(() => {})
    coming.set(victim, started)
    await Promise.all([killed, away, publish()])
  }
  await publisher.finish()
  await Promise.all(coming.values())
}

/** The number of a job's events in one part. */
function shareOf(part: number, parts: number): number {
  return Math.floor(((part + 1) * EVENTS_PER_JOB) / parts) - Math.floor((part * EVENTS_PER_JOB) / parts)
}

/** Waits until every watcher has received events and is connected, so that a kill cuts off each of them. */
const allFollow = (server: Restarted, watchers: readonly Watcher[]) =>
  until('every watcher to follow', async () => {
    return watchers.every(({ seen }) => seen.length >= LIFECYCLE) && (await server.followers()) === watchers.length
  })

function check(watchers: readonly Watcher[]): void {
  const count = EVENTS_PER_JOB + LIFECYCLE
  for (const { seen, resets } of watchers) {
    expect(seen.map(({ cursor }) => cursor)).toEqual(Array.from({ length: count }, (_, i) => i + 1))
    const published = seen.filter(({ stage }) => stage === 'progress').map(({ seq, data }) => [seq, data])
    const byNumber = published.toSorted(([a], [b]) => Number(a) - Number(b))
    expect(byNumber).toEqual(Array.from({ length: EVENTS_PER_JOB }, (_, i) => [i, i]))
    expect(seen.at(-1)).toMatchObject({ stage: 'run', data: { state: 'SUCCEEDED' } })
    expect(resets).toBe(0)
  }
}

describe.each(REDIS_KINDS)('with a %s Redis', (kind) => {
  test(
    `watchers see each event once while router, gateway and Redis are killed`,
    async () => {
      const [database, redis] = await Promise.all([freshDatabase(), testRedis(kind)])
      const env = { DATABASE_URL: database.url, REDIS_URL: redis.url, RELAY_INTERVAL_SECONDS: '0.1' }
      const begin = (roles: string) => Restarted.serve(() => serve(env, ['--roles', roles]))
      const api = await serveHere(env, new Set(['api', 'leader']))
      const [gateway, ...routers] = await Promise.all(PARTS.map(begin))
      if (gateway === undefined) throw new Error('It was started')
      const publisher = await HttpPublisher.begin(api.url, JOBS)
      const watchers = publisher.jobIds.map((jobId) => new Watcher(gateway.url, jobId))
      const fastPath = async () => {}
      await torment(
        publisher,
        [
          { kill: () => gateway.kill(), start: () => gateway.start(), atWork: () => allFollow(gateway, watchers) },
          ...routers.map((router) => ({ kill: () => router.kill(), start: () => router.start(), atWork: fastPath })),
          // A Redis node keeps nothing on disk, so it is empty after every restart.
          ...redis.nodes
            .slice(0, REDIS_NODES_MAX)
            .map((node) => ({ kill: () => node.kill9(), start: () => node.restart(), atWork: fastPath })),
        ],
        KILLS,
      )
      await Promise.all(watchers.map(({ ended }) => ended))
      check(watchers)
      await lastStatesIn(redis.url, publisher.jobIds)
      await Promise.all([api.kill9(), ...[gateway, ...routers].map((server) => server.close())])
      await redis.stop()
      await database.leave()
    },
    TEST_WITHIN_MS,
  )
})

async function lastStatesIn(redisUrl: string, jobIds: readonly string[]): Promise<void> {
  const scene = new RedisScene(redisUrl)
  await scene.up()
  for (const jobId of jobIds) {
    await until('the last state to be in Redis', async () => {
      const state = await scene.state('scan', jobId).catch(() => null)
      return JSON.stringify(state).includes('"SUCCEEDED"')
    })
  }
  await scene.close()
}

test.each(ENGINES)(
  'on %s alone, the server is killed: watchers see each event once',
  async (engine) => {
    const database = engine === 'postgres' ? await freshDatabase() : null
    const env = database === null ? { DATA_DIR: join(folder, engine) } : { DATABASE_URL: database.url }
    const server = await Restarted.serve(() => serve(env))
    const publisher = await HttpPublisher.begin(server.url, JOBS)
    const watchers = publisher.jobIds.map((jobId) => new Watcher(server.url, jobId))
    const victim = { kill: () => server.kill(), start: () => server.start(), atWork: () => allFollow(server, watchers) }
    await torment(publisher, [victim], KILLS)
    await Promise.all(watchers.map(({ ended }) => ended))
    check(watchers)
    await server.close()
    await database?.leave()
  },
  TEST_WITHIN_MS,
)
