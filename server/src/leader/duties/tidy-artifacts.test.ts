import { randomUUID } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openDisk } from '../../blobs/disk.ts'
import { SHARDS } from '../../blobs/port.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { chunksOf, sha256Of, someBytes, testBlobs, uploadRequest } from '../../testing/services/artifacts.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { createExpireUploads, createTidyArtifacts } from './tidy-artifacts.ts'

const DAY_MS = 24 * 3_600_000

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let place: Awaited<ReturnType<typeof testBlobs>>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    place = await testBlobs()
    scene.services.deps.blobs = place.blobs
  })
  afterAll(async () => {
    await scene.close()
    place.remove()
  })

  test('an overdue upload wakes the job’s readers, and a full batch continues', async () => {
    await scene.settings.put(LOCAL_ADMIN, 'uploads_batch_max', 2)
    const jobIds = await Promise.all(Array.from({ length: 3 }, () => scene.submit({ artifacts: [{ name: 'a' }] })))
    await sql(scene.store, 'UPDATE ichido.upload_waits SET expires_at = 0')
    scene.woken()
    scene.ended.length = 0
    const expire = createExpireUploads(scene)
    expect(await expire()).toBe(0)
    expect(await expire()).toBeNull()
    expect(scene.woken().sort()).toEqual(jobIds.map((id) => `job:${id}`).sort())
    expect(scene.ended).toEqual(jobIds.map(() => 'CANCELED'))
  })

  test('a file of a dead node is removed after a day; files with a row stay', async () => {
    const [named, stray] = [someBytes(20), someBytes(21)]
    await scene.services.artifacts.upload({ caller: LOCAL_ADMIN }, uploadRequest(named))
    // The file was stored, and then the node died.
    const receiving = await place.blobs.receive(randomUUID(), 0)
    await receiving.take(chunksOf(stray), 100, async () => {})
    await place.blobs.place(await receiving.seal(), randomUUID())
    const files = () =>
      (readdirSync(join(place.folder, 'blobs'), { recursive: true }) as string[]).flatMap(
        (file) => file.split('/')[1] ?? [],
      )
    const left = () => files().map((file) => file.split('.')[0])

    async function tidyAll(laterMs: number) {
      const world = { ...realWorld, now: () => realWorld.now() + laterMs }
      const blobs = await openDisk({ folder: place.folder, world })
      const tidy = createTidyArtifacts({ ...scene, blobs })
      for (let i = 0; i < SHARDS; i++) await tidy()
    }
    await tidyAll(DAY_MS - 60_000)
    expect(left().sort()).toEqual([sha256Of(named), sha256Of(stray)].sort())
    await tidyAll(DAY_MS + 60_000)
    expect(left()).toEqual([sha256Of(named)])
  })
})
