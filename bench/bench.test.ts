import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
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
  ready: 60,
  written: 40,
  steadyMs: 50,
  nodes: [1, 2],
  subscribers: [10],
  settleMs: 0,
}

const program = [bundled('server/src/cli/bin.ts')]
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
    published: async () => ({ program, worker: null }),
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

/** All contestants are measured once. The other suites use the same code for them, and servers take a second to start. */
const ABSENT = new Set(['http', 'sqliteHttp', 'boss', 'graphile', 'bee', 'sqliteFloor'])
const COMPLETE = 'drain'

test.for(Object.keys(SUITES))('the suite %s runs', async (name) => {
  const absent = name === COMPLETE ? new Set<string>() : ABSENT
  const verdicts = ((await SUITES[name]?.({ ...stage, absent })) ?? []).map(judge)
  expect(verdicts.length).toBeGreaterThan(0)
  for (const { what, against, ratio } of verdicts) expect(ratio, `${what}, ${against}`).toBeGreaterThan(0)
})
