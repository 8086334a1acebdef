import { readdirSync, rmSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { findStrace, traceProcess, withoutStrace } from '../../../../scripts/testing/strace.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'
import { type ControlNode, startNode } from '../../../src/node/start-node.ts'
import { realWorld } from '../../../src/node/world.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { silentMeter } from '../../../src/services/system/meter.ts'
import { openSqlite } from '../../../src/store/engines/sqlite/sqlite.ts'
import { sha256Of, someBytes, testFolder, uploadRequest } from '../../../src/testing/services/artifacts.ts'
import { sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 24: files on node A are 404 on node B. Several nodes must share one folder, and a row always has its file. */

const strace = await findStrace()
afterAll(() => killAll())

function newFolder(): string {
  const { folder, remove } = testFolder()
  onTestFinished(remove)
  return folder
}

describe('two nodes on PostgreSQL', () => {
  let database: FreshDatabase
  const running: ControlNode[] = []
  const trouble: string[] = []
  beforeAll(async () => {
    database = await freshDatabase()
  })
  afterEach(async () => {
    for (const node of running.splice(0)) await node.close()
  })
  afterAll(() => database.leave())

  async function start(folder: string | undefined): Promise<ControlNode> {
    const node = await startNode({
      storage: { databaseUrl: database.url },
      world: realWorld,
      meter: silentMeter,
      allowNoFsync: false,
      artifacts: { folder },
      onTrouble: (where) => void trouble.push(where),
    })
    running.push(node)
    return node
  }
  const admin = { caller: LOCAL_ADMIN }

  test('node B serves the uploads of node A, and continues an upload that A began', async () => {
    const shared = newFolder()
    const [a, b] = [await start(shared), await start(shared)]
    const bytes = someBytes(100_000)
    const outcome = await a.services.submission.submit(
      LOCAL_ADMIN,
      { kind: 'work', artifacts: [{ name: 'x', size_bytes: 100_000, sha256: sha256Of(bytes) }] },
      { key: null },
    )
    if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
    const { jobId } = outcome
    const send = (node: ControlNode, part: Uint8Array, fromByte: number) =>
      node.services.artifacts.upload(admin, uploadRequest(part, { jobId, name: 'x', fromByte }))
    expect(await send(a, bytes.subarray(0, 40_000), 0)).toMatchObject({ kind: 'partial' })
    const uploaded = await send(b, bytes.subarray(40_000), 40_000)
    if (uploaded.kind !== 'ready') throw new Error(uploaded.kind)
    const found = await a.services.artifacts.find(admin, uploaded.artifact.artifact_id)
    expect(await buffer(await found.open(null))).toEqual(bytes)
    const [lease] = await a.services.runs.lease('w', { queues: ['default'], kinds: [], max: 1, waitMs: 20_000 })
    expect(lease).toMatchObject({ job_id: jobId, artifacts: [{ name: 'x' }] })

    // A different folder, or a share that is not mounted, would look as if all artifacts were lost.
    await expect(start(newFolder())).rejects.toThrow(/does not hold the artifacts of this database.*ARTIFACTS_DIR/s)
    const serving = serve({ DATABASE_URL: database.url, ARTIFACTS_DIR: newFolder() })
    await expect(serving).rejects.toThrow(/does not hold the artifacts of this database/)

    const without = await start(undefined)
    await expect(without.services.artifacts.find(admin, uploaded.artifact.artifact_id)).rejects.toMatchObject({
      code: 'ARTIFACTS_OFF',
    })
  })

  test('nodes that start together agree on one folder', async () => {
    const fresh = await freshDatabase()
    onTestFinished(() => fresh.leave())
    const shared = newFolder()
    const nodes = await Promise.all(
      Array.from({ length: 4 }, () =>
        startNode({
          storage: { databaseUrl: fresh.url },
          world: realWorld,
          meter: silentMeter,
          allowNoFsync: false,
          artifacts: { folder: shared },
          onTrouble: (where) => void trouble.push(where),
        }),
      ),
    )
    running.push(...nodes)
    expect(readdirSync(shared)).toHaveLength(1)
  })
})

test('SQLite reports a missing artifact folder once artifacts were stored', async () => {
  const dataDir = newFolder()
  const trouble: unknown[] = []
  const start = () =>
    startNode({
      storage: { dataDir },
      world: realWorld,
      meter: silentMeter,
      allowNoFsync: false,
      onTrouble: (where, error) => void (where === 'artifacts' && trouble.push(String(error))),
    })
  let node = await start()
  await node.close()
  rmSync(join(dataDir, 'artifacts'), { recursive: true })
  node = await start()
  const sent = await node.services.artifacts.upload({ caller: LOCAL_ADMIN }, uploadRequest(someBytes(3)))
  expect([sent.kind, trouble]).toEqual(['ready', []])
  await node.close()
  rmSync(join(dataDir, 'artifacts'), { recursive: true })
  node = await start()
  expect(trouble).toEqual([expect.stringContaining('does not hold the artifacts')])
  await node.close()
})

interface Sent {
  status: number
  body: string
}

function send(server: Serving, path: string, bytes: Uint8Array): Promise<Sent> {
  return new Promise((resolve, reject) => {
    const sending = request(`${server.url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/octet-stream', 'content-length': bytes.length },
    })
    sending.on('error', reject)
    sending.on('response', async (response) => {
      const body = (await buffer(response)).toString()
      resolve({ status: response.statusCode ?? 0, body })
    })
    sending.end(bytes)
  })
}

test('kill -9 loses no acknowledged upload and leaves no row without its file', async () => {
  const dataDir = newFolder()
  const answered = new Map<string, Buffer>()
  for (let round = 0; round < size(1, 30); round++) {
    const server = await serve({ DATA_DIR: dataDir })
    let count = 0
    const sender = async (name: string) => {
      for (;;) {
        const bytes = someBytes(50_000)
        const { status, body } = await send(server, `/v1/artifacts?name=${name}`, bytes)
        expect(status).toBe(201)
        answered.set(JSON.parse(body).artifact_id, bytes)
        count++
      }
    }
    const senders = ['a', 'b', 'c'].map((name) => sender(name).catch(() => {}))
    await until('some uploads to be acknowledged', async () => count > 5 + round)
    await server.kill9()
    await Promise.all(senders)
    const store = openSqlite({ dataDir, now: () => Date.now() })
    const blobs = await sql(store, 'SELECT blob_id, sha256 FROM blobs')
    await store.close()
    const files = new Set(
      (readdirSync(join(dataDir, 'artifacts'), { recursive: true }) as string[]).map((path) => path.split('/').at(-1)),
    )
    for (const { blob_id, sha256 } of blobs) expect(files).toContain(`${sha256}.${blob_id}`)
  }
  const server = await serve({ DATA_DIR: dataDir })
  for (const [id, bytes] of answered) {
    const response = await fetch(`${server.url}/v1/artifacts/${id}`)
    expect(Buffer.from(await response.arrayBuffer()).equals(bytes)).toBe(true)
  }
  await server.stop()
})

if (strace !== undefined) {
  test('a file is synced, renamed, and its folder synced before the row is inserted', async () => {
    const dataDir = newFolder()
    const server = await serve({ DATA_DIR: dataDir })
    await send(server, '/v1/artifacts?name=warm', someBytes(10))
    const calls = 'rename,renameat,renameat2,fsync,fdatasync,openat,close,writev,write,pwrite64'
    const trace = await traceProcess(strace, server.pid, calls, join(newFolder(), 'trace'))
    expect(await send(server, '/v1/artifacts?name=traced', someBytes(10))).toMatchObject({ status: 201 })
    const lines = await trace.stop()
    await server.stop()
    /** Finds the next such call and its result. Calls of other threads may stand in between. */
    const after = (from: number, pattern: RegExp) => {
      const at = lines.findIndex((line, i) => i > from && pattern.test(line))
      expect(at, String(pattern)).toBeGreaterThanOrEqual(0)
      const [thread] = (lines[at] ?? '').split(' ')
      const end = lines.findIndex((line, i) => i >= at && line.startsWith(`${thread} `) && / = -?\d+/.test(line))
      return { at: end, result: / = (-?\d+)/.exec(lines[end] ?? '')?.[1] ?? '', call: lines[at] ?? '' }
    }
    const file = after(-1, /openat\(.*\/uploads\/.*O_EXCL/)
    const bytes = after(file.at, new RegExp(`(sync|close)\\(${file.result}\\b`))
    expect(bytes.call).toContain('sync')
    const moved = after(bytes.at, /rename.*uploads.*blobs/)
    const place = after(moved.at, /openat\(.*\/blobs\/[0-9a-f]{2}"/)
    const placed = after(place.at, new RegExp(`(sync|close)\\(${place.result}\\b`))
    expect(placed.call).toContain('sync')
    const row = after(placed.at, /f(data)?sync\(/)
    after(row.at, /HTTP\/1\.1 201/)
    expect([bytes, moved, placed, row].map(({ result }) => result)).toEqual(['0', '0', '0', '0'])
  })
} else withoutStrace('a file is synced before its row is inserted')
