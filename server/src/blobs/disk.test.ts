import { randomUUID } from 'node:crypto'
import { readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { realWorld } from '../node/world.ts'
import { chunksOf, sha256Of, someBytes, testBlobs } from '../testing/services/artifacts.ts'
import { openDisk, PARTS_MAX } from './disk.ts'
import { BlobMissing, type Blobs, TooManyParts, UploadGone } from './port.ts'

const nothing = async () => {}
const MAX = 10_000_000

let blobs: Blobs
let folder: string
let remove: () => void
beforeAll(async () => {
  ;({ blobs, folder, remove } = await testBlobs())
})
afterAll(() => remove())

async function send(id: string, bytes: Uint8Array, fromByte = 0, max = MAX) {
  const receiving = await blobs.receive(id, fromByte)
  return { receiving, received: await receiving.take(chunksOf(bytes, 1_000), max, nothing) }
}

async function placed(bytes: Uint8Array) {
  const { receiving } = await send(randomUUID(), bytes)
  const sealed = await receiving.seal()
  const name = { sha256: sealed.sha256, blobId: randomUUID() }
  await blobs.place(sealed, name.blobId)
  return name
}

describe('bytes of one request', () => {
  test('are hashed while they arrive, and found under their hash', async () => {
    const [id, bytes] = [randomUUID(), someBytes(123_456)]
    const { receiving, received } = await send(id, bytes)
    expect(received).toEqual({ end: 'whole', bytes: bytes.length })
    const sealed = await receiving.seal()
    expect(sealed).toMatchObject({ sha256: sha256Of(bytes), sizeBytes: bytes.length })
    await blobs.place(sealed, 'b1')
    const name = { sha256: sealed.sha256, blobId: 'b1' }
    expect(await buffer(await blobs.read(name, null))).toEqual(bytes)
    expect(await buffer(await blobs.read(name, { first: 10, last: 19 }))).toEqual(bytes.subarray(10, 20))
    expect(readdirSync(join(folder, 'blobs', sealed.sha256.slice(0, 2)))).toEqual([`${sealed.sha256}.b1`])
    await blobs.remove(name)
    await blobs.remove(name)
    await expect(blobs.read(name, null)).rejects.toThrow(BlobMissing)
  })

  test('may be empty', async () => {
    const { receiving } = await send(randomUUID(), Buffer.alloc(0))
    const sealed = await receiving.seal()
    expect(sealed).toMatchObject({ sha256: sha256Of(Buffer.alloc(0)), sizeBytes: 0 })
    await blobs.place(sealed, 'empty')
    expect(await buffer(await blobs.read({ sha256: sealed.sha256, blobId: 'empty' }, null))).toHaveLength(0)
  })

  test('stop at the limit', async () => {
    expect((await send(randomUUID(), someBytes(5_000), 0, 4_999)).received.end).toBe('over')
    expect((await send(randomUUID(), someBytes(5_000), 0, 5_000)).received.end).toBe('whole')
  })

  test('are kept when the upload is stopped, and the reason is thrown', async () => {
    const id = randomUUID()
    const receiving = await blobs.receive(id, 0)
    const stop = async () => {
      throw new Error('canceled')
    }
    await expect(receiving.take(chunksOf(someBytes(5_000), 1_000), MAX, stop)).rejects.toThrow('canceled')
    expect(await blobs.received(id)).toBe(1_000)
  })
})

describe('an upload that is interrupted', () => {
  test('continues where it stopped, any number of times, also on another node', async () => {
    const [id, bytes] = [randomUUID(), someBytes(20_000)]
    const first = await blobs.receive(id, 0)
    expect(await first.take(chunksOf(bytes, 1_000, 7), MAX, nothing)).toEqual({ end: 'cut', bytes: 7_000 })
    const other = await openDisk({ folder, world: realWorld })
    expect(await other.received(id)).toBe(7_000)
    const second = await other.receive(id, 7_000)
    expect(await second.take(chunksOf(bytes.subarray(7_000), 1_000, 5), MAX, nothing)).toMatchObject({ end: 'cut' })
    const last = await blobs.receive(id, 12_000)
    expect(await last.take(chunksOf(bytes.subarray(12_000), 333), MAX, nothing)).toEqual({
      end: 'whole',
      bytes: 20_000,
    })
    const sealed = await last.seal()
    expect(sealed).toMatchObject({ sha256: sha256Of(bytes), sizeBytes: 20_000 })
    expect(readFileSync(sealed.file)).toEqual(bytes)
    await blobs.discard(id)
    expect(await blobs.received(id)).toBe(0)
  })

  test('and restarts keeps nothing of the first try', async () => {
    const [id, bytes] = [randomUUID(), someBytes(3_000)]
    await send(id, someBytes(9_000))
    const { receiving } = await send(id, bytes)
    expect(await blobs.received(id)).toBe(3_000)
    expect((await receiving.seal()).sha256).toBe(sha256Of(bytes))
  })

  test('and whose first request still writes keeps both parts intact', async () => {
    const [id, bytes] = [randomUUID(), someBytes(10_000)]
    const slow = await blobs.receive(id, 0)
    const meanwhile = Promise.withResolvers<void>()
    async function* stuck() {
      yield bytes.subarray(0, 4_000)
      await meanwhile.promise
      yield someBytes(2_000)
    }
    const writing = slow.take(stuck(), MAX, nothing)
    while ((await blobs.received(id)) < 4_000) await new Promise((resolve) => setImmediate(resolve))
    const { receiving } = await send(id, bytes.subarray(4_000), 4_000)
    meanwhile.resolve()
    await writing
    // Bytes that the first request wrote after the second had begun are not taken.
    expect((await receiving.seal()).sha256).toBe(sha256Of(bytes))
  })

  test('and was restarted by another request is gone for the first one', async () => {
    const id = randomUUID()
    const { receiving } = await send(id, someBytes(1_000))
    await send(id, someBytes(2_000))
    await expect(blobs.place(await receiving.seal(), 'gone')).rejects.toThrow(UploadGone)
  })

  test('and was discarded cannot be continued or completed', async () => {
    const id = randomUUID()
    await send(id, someBytes(1_000))
    const { receiving: last } = await send(id, someBytes(500), 1_000)
    const late = await blobs.receive(id, 1_500)
    await blobs.discard(id)
    await expect(last.seal()).rejects.toThrow(UploadGone)
    await expect(late.take(chunksOf(someBytes(500)), MAX, nothing)).rejects.toThrow(UploadGone)
  })

  test('ignores gaps, empty parts and other files', async () => {
    const id = randomUUID()
    await send(id, someBytes(1_000))
    const place = join(folder, 'uploads', id)
    for (const [name, bytes] of [
      ['0000000000002000.x', 500],
      ['0000000000001000.x', 0],
      ['sealed.x', 9_000],
    ] as const) {
      writeFileSync(join(place, name), someBytes(bytes))
    }
    expect(await blobs.received(id)).toBe(1_000)
    writeFileSync(join(place, '0000000000000900.x'), someBytes(1_100))
    expect(await blobs.received(id)).toBe(2_500)
  })

  test('in too many parts is refused', async () => {
    const id = randomUUID()
    await send(id, someBytes(1))
    for (let i = 1; i < PARTS_MAX; i++) {
      writeFileSync(join(folder, 'uploads', id, `${String(i).padStart(16, '0')}.x`), 'x')
    }
    await expect(blobs.receive(id, PARTS_MAX)).rejects.toThrow(TooManyParts)
    await blobs.discard(id)
  })
})

test('uploads are listed in batches', async () => {
  const place = await testBlobs()
  const ids = Array.from({ length: 5 }, () => randomUUID())
  for (const id of ids) await (await place.blobs.receive(id, 0)).take(chunksOf(someBytes(1)), MAX, nothing)
  const batches: string[][] = []
  for await (const batch of place.blobs.uploads(2)) batches.push(batch)
  expect(batches.map((batch) => batch.length)).toEqual([2, 2, 1])
  expect(batches.flat().sort()).toEqual(ids.sort())
  place.remove()
})

test('old blobs are found by their shard and age', async () => {
  const name = await placed(someBytes(10))
  const shard = Number.parseInt(name.sha256.slice(0, 2), 16)
  expect(await blobs.oldBlobs(shard, 60_000)).toEqual([])
  expect(await blobs.oldBlobs(shard, 0)).toContainEqual(name)
  // A copied folder may have old times, although the file is new.
  utimesSync(join(folder, 'blobs', name.sha256.slice(0, 2), `${name.sha256}.${name.blobId}`), 0, 0)
  expect(await blobs.oldBlobs(shard, 60_000)).toEqual([])
  expect(await blobs.oldBlobs((shard + 1) % 256, 0)).not.toContainEqual(name)
})
