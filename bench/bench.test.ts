import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { root } from '../scripts/boot/fetch-packages.mjs'
import type { Redis } from '../scripts/services/redis.ts'
import { bundled } from '../scripts/testing/programs.ts'
import { bareDatabase, privateRedis } from '../scripts/testing/services.ts'
import { enterHere } from './contest/entrant.ts'
import { fetchPeers } from './peers/packages.ts'
import { judge } from './report/comparison.ts'
import type { Size, Stage } from './stage.ts'
import { SUITES } from './suites/index.ts'

/** The least of everything: this shows that each suite still runs, and measures nothing. */
const TINY: Size = {
  warmUps: 0,
  rounds: 1,
  roundMs: 30,
  calls: 4,
  callers: [1, 8],
  drained: 40,
  few: 10_000,
  many: 12_000,
  shown: 12_000,
  ready: 60,
  written: 40,
  steadyMs: 50,
  pages: 3,
  watchMs: 1_000,
  nodes: [1, 2],
  subscribers: [10],
  settleMs: 0,
}

const program = [bundled(join(root, 'server/src/cli/bin.ts'))]
const library = pathToFileURL(bundled(join(root, 'server/src/library/index.ts'))).href
let folders: string
let redis: Redis
let stage: Stage

beforeAll(async () => {
  folders = mkdtempSync(join(tmpdir(), 'ichido-bench-'))
  redis = await privateRedis()
  stage = {
    size: TINY,
    packages: await fetchPeers(),
    program,
    published: async () => ({ program, library, worker: null }),
    absent: new Set(),
    enter: enterHere,
    database: async () => (await bareDatabase()).url,
    folder: (name) => pathToFileURL(join(folders, name)).href,
    redis: async () => redis.url,
    ownRedis: (settings = {}) => privateRedis({ appendfsync: 'always', settings }),
    say: () => {},
    recycleLog: async () => {},
    close: async () => {},
  }
})

afterAll(async () => {
  await redis.stop()
  rmSync(folders, { recursive: true, force: true })
})

/** The suites share the code of the contestants, and a server takes a second to start: most suites run with a few of them. */
const SERVERS = ['http', 'sqliteHttp']
const ABSENT: Record<string, string[]> = { drain: [], steady: SERVERS }
const MOST = [...SERVERS, 'boss', 'graphile', 'bee', 'sqliteFloor']

test.for(Object.keys(SUITES))('the suite %s runs', async (name) => {
  const absent = new Set(ABSENT[name] ?? MOST)
  const verdicts = ((await SUITES[name]?.({ ...stage, absent })) ?? []).map(judge)
  expect(verdicts.length).toBeGreaterThan(0)
  for (const { what, against, ratio } of verdicts) expect(ratio, `${what}, ${against}`).toBeGreaterThan(0)
})
