import { afterAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import type { PostgresStore } from '../store/engines/postgres.ts'
import { NodeProcess } from '../testing/node-process.ts'
import { Scene } from '../testing/scene.ts'
import { openNode, until } from '../testing/store.ts'

/** Real processes on PostgreSQL: whatever happens to the leader, another one leads soon, and nothing is done twice. */

const cleanUps: (() => Promise<unknown>)[] = []
afterAll(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp()
})

interface Cluster {
  store: PostgresStore
  start(): Promise<NodeProcess>
}

async function cluster(): Promise<Cluster> {
  const database: FreshDatabase = await freshDatabase()
  const store = await openNode(database.url)
  cleanUps.push(database.drop, store.close)
  return {
    store,
    async start() {
      const node = await NodeProcess.start(database.url)
      cleanUps.push(() => node.end('SIGKILL'))
      return node
    },
  }
}

const TIMES = {
  lease_ttl_seconds: 1,
  continuation_seconds: 1,
  backoff: { baseSeconds: 3600, capSeconds: 3600, jitter: 0 },
}

/** So many runs whose worker is never heard of again. */
async function abandoned(scene: Scene, count: number): Promise<string[]> {
  const ids: string[] = []
  for (let i = 0; i < count; i++) {
    ids.push((await scene.running({ policy: TIMES })).jobId)
  }
  return ids
}

async function expectReapedOnce(scene: Scene, jobIds: readonly string[]): Promise<void> {
  for (const id of jobIds) {
    await until('the run to be handed on', async () => (await scene.runs(id)).length > 1)
    expect(await scene.runs(id)).toMatchObject([{ state: 'TIMED_OUT' }, { state: 'PENDING', retry_count: 1 }])
    expect(await scene.events(id)).toHaveLength(4)
  }
}

describe.concurrent('the leader', () => {
  test('that is killed is followed within ten seconds, and again', async ({ expect }) => {
    const { store, start } = await cluster()
    const scene = new Scene(store)
    let leader = await start()
    const kills = size(1, 20)
    const ids: string[] = []
    for (let kill = 0; kill < kills; kill++) {
      const next = await start()
      expect(next.standing?.leads).toBe(false)
      ids.push(...(await abandoned(scene, 5)))
      await leader.end('SIGKILL')
      expect(await next.untilLeads()).toBeLessThan(10_000)
      expect(next.standing?.epoch).toBe(kill + 3)
      leader = next
    }
    await expectReapedOnce(scene, ids)
    await leader.end('SIGTERM')
  })

  test('that stops is followed at once', async ({ expect }) => {
    const { start } = await cluster()
    const leader = await start()
    const next = await start()
    const stopping = leader.end('SIGTERM')
    expect(await next.untilLeads()).toBeLessThan(3_000)
    await stopping
    expect(next.standing).toEqual({ leads: true, epoch: 3 })
  })

  test('that is paused is followed; when it goes on it does nothing, and knows that it is no leader', async ({
    expect,
  }) => {
    const { store, start } = await cluster()
    const scene = new Scene(store)
    const leader = await start()
    const next = await start()
    const ids = await abandoned(scene, 5)
    await until(
      'the leader to see them',
      async () => (await scene.runs(ids[0] ?? ''))[0]?.continuation_state === 'CONFIRMING',
    )
    leader.signal('SIGSTOP')
    expect(await next.untilLeads()).toBeLessThan(12_000)
    ids.push(...(await abandoned(scene, 5)))
    leader.signal('SIGCONT')
    await until('the former leader to know', async () => leader.standing?.leads === false)
    expect(leader.changes.at(-1)).toEqual({ leads: false, epoch: 3 })
    await expectReapedOnce(scene, ids)
    expect(next.standing).toEqual({ leads: true, epoch: 3 })
  })
})
