import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { breaches, type Entries, libraryBreaches } from './architecture/check.ts'
import { LIBRARY } from './architecture/rules.ts'
import { root } from './boot/fetch-packages.mjs'
import { packageEntries } from './docs/packages.ts'

const paths = globSync(['server/src/**/*.ts', 'sdk/src/**/*.ts'], { cwd: root })
const repository = new Map(paths.map((path) => [path, readFileSync(join(root, path), 'utf8')]))

test('imports go one way, without cycles, and the world is injected', () => {
  expect(breaches(repository, packageEntries())).toEqual([])
})

test('the library reaches nothing of the server, and only packages that it ships with', () => {
  expect(libraryBreaches(repository, packageEntries())).toEqual([])
})

describe('the check itself', () => {
  const entries: Entries = new Map([
    ['@ichido/sdk', 'sdk/src/index.ts'],
    ['@ichido/sdk/protocol', 'sdk/src/protocol/index.ts'],
    ['@ichido/sdk/worker', 'sdk/src/worker/index.ts'],
    ['ichido', 'server/src/library/index.ts'],
  ])
  const check = (files: Record<string, string>) => breaches(new Map(Object.entries(files)), entries)

  test('the check fails if there is nothing to check', () => {
    expect(check({})).toEqual(['There are no files to check.'])
    expect(check({ 'server/src/core/a.test.ts': '' })).toEqual(['There are no files to check.'])
  })

  test.each([
    ['server/src/core/a.ts', '../store/port.ts', 'server/src/store/port.ts'],
    ['server/src/core/a.ts', '../node/world.ts', 'server/src/node/world.ts'],
    ['server/src/store/a.ts', '../services/b.ts', 'server/src/services/b.ts'],
    ['server/src/store/a.ts', '../bus/port.ts', 'server/src/bus/port.ts'],
    ['server/src/bus/a.ts', '../store/port.ts', 'server/src/store/port.ts'],
    ['server/src/services/a.ts', '../store/engines/sqlite/sqlite.ts', 'server/src/store/engines/sqlite/sqlite.ts'],
    ['server/src/services/a.ts', '../store/jobs/jobs.sql.ts', 'server/src/store/jobs/jobs.sql.ts'],
    ['server/src/services/a.ts', '../store/statement.ts', 'server/src/store/statement.ts'],
    ['server/src/services/jobs/a.ts', '../../store/statement.ts', 'server/src/store/statement.ts'],
    ['server/src/leader/duties/a.ts', '../../store/statement.ts', 'server/src/store/statement.ts'],
    ['server/src/services/a.ts', '../bus/redis.ts', 'server/src/bus/redis.ts'],
    ['server/src/services/logs/a.ts', '../../store/triggers/hooks.ts', 'server/src/store/triggers/hooks.ts'],
    ['server/src/services/logs/a.ts', '../triggers/hooks.ts', 'server/src/services/triggers/hooks.ts'],
    ['server/src/http/routes/a.ts', '../../store/jobs/list-jobs.ts', 'server/src/store/jobs/list-jobs.ts'],
    ['server/src/http/routes/a.ts', '../../store/port.ts', 'server/src/store/port.ts'],
    ['server/src/services/a.ts', '../http/server/app.ts', 'server/src/http/server/app.ts'],
    ['server/src/services/a.ts', '@ichido/sdk/worker', 'sdk/src/worker/index.ts'],
    ['server/src/leader/a.ts', '../http/server/app.ts', 'server/src/http/server/app.ts'],
    ['server/src/http/routes/a.ts', '../../leader/duties/reap.ts', 'server/src/leader/duties/reap.ts'],
    ['server/src/http/a.ts', '../node/start-node.ts', 'server/src/node/start-node.ts'],
    ['server/src/cli/a.ts', '../store/engines/sqlite/sqlite.ts', 'server/src/store/engines/sqlite/sqlite.ts'],
    ['sdk/src/client/a.ts', 'ichido', 'server/src/library/index.ts'],
    ['sdk/src/client/a.ts', '../../../server/src/core/run/job.ts', 'server/src/core/run/job.ts'],
    ['sdk/src/protocol/a.ts', '../client/b.ts', 'sdk/src/client/b.ts'],
    ['server/src/node/start-node.ts', '../testing/store/store.ts', 'server/src/testing/store/store.ts'],
    ['server/src/node/start-node.ts', '../../../scripts/test.ts', 'scripts/test.ts'],
  ])('%s may not import %s', (path, from, target) => {
    const forms = [
      `import { x } from '${from}'`,
      `import type { X } from '${from}'`,
      `import '${from}'`,
      `export * from '${from}'`,
      `export type X = import('${from}').X`,
      `export const load = () => import('${from}')`,
    ]
    for (const text of forms) expect(check({ [path]: text })).toContain(`${path} may not import ${target}.`)
  })

  test.each([
    ['server/src/core/a.ts', '@ichido/sdk/protocol'],
    ['server/src/services/a.ts', '../store/port.ts'],
    ['server/src/services/logs/a.ts', '../../store/logs/run-logs.ts'],
    ['server/src/services/logs/a.ts', '../../store/runs/run-facts.ts'],
    ['server/src/http/routes/a.ts', '../../services/jobs/jobs.ts'],
    ['server/src/cli/commands/operate/serve.ts', '../../../node/start-node.ts'],
    ['server/src/cli/commands/operate/worker.ts', '@ichido/sdk/worker'],
    ['server/src/library/open.ts', '../store/engines/sqlite/sqlite.ts'],
    ['server/src/store/jobs/a.ts', './jobs.sql.ts'],
    ['server/src/library/open.ts', '@ichido/sdk'],
    ['sdk/src/client/a.ts', '../protocol/index.ts'],
  ])('%s may import %s', (path, from) => {
    expect(check({ [path]: `import { x } from '${from}'` })).toEqual([])
  })

  test('a file outside of every room is reported', () => {
    expect(check({ 'server/other/a.ts': '' })).toEqual(['server/other/a.ts belongs to no room of the rule table.'])
  })

  test('a folder with more than 20 files is reported', () => {
    const folder = (count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`sdk/src/client/a${i}.ts`, '']))
    expect(check({ ...folder(20), 'sdk/src/client/a.test.ts': '' })).toEqual([])
    expect(check(folder(21))).toEqual(['sdk/src/client has 21 files; at most 20 make a room.'])
  })

  test("the library's reach includes the SDK, lazy imports and types", () => {
    const files = {
      ...Object.fromEntries(LIBRARY.map((path) => [path, ''])),
      'server/src/library/index.ts': "export * from '@ichido/sdk'; export const open = () => import('./embed.ts')",
      'server/src/library/embed.ts': "import type { Redis } from '../node/redis.ts'; import 'pg'; import 'node:fs'",
      'server/src/node/redis.ts': "import '../bus/redis/link.ts'",
      'server/src/bus/redis/link.ts': "import '@redis/client'",
      'sdk/src/index.ts': "import 'fastify/types'",
      'server/src/http/server/app.ts': "import 'fastify'",
    }
    const found = libraryBreaches(new Map(Object.entries(files)), entries)
    expect(found).toEqual([
      'The library reaches @redis/client: server/src/library/index.ts → server/src/library/embed.ts → ' +
        'server/src/node/redis.ts → server/src/bus/redis/link.ts.',
      'The library reaches fastify/types: server/src/library/index.ts → sdk/src/index.ts.',
      'The library reaches server/src/bus/redis/link.ts: server/src/library/index.ts → server/src/library/embed.ts → ' +
        'server/src/node/redis.ts.',
    ])
    expect(libraryBreaches(new Map(), entries)).toContain('server/src/library/index.ts is missing.')
  })

  test('import cycles are reported, also through types', () => {
    const a = "import type { B } from './b.ts'"
    const b = "export * from './c.ts'"
    expect(check({ 'sdk/src/a.ts': a, 'sdk/src/b.ts': b, 'sdk/src/c.ts': '' })).toEqual([])
    expect(check({ 'sdk/src/a.ts': a, 'sdk/src/b.ts': b, 'sdk/src/c.ts': "import './a.ts'" })).toEqual([
      'Import cycle: sdk/src/a.ts → sdk/src/b.ts → sdk/src/c.ts → sdk/src/a.ts.',
    ])
  })

  test.each([
    ["import { readFileSync } from 'node:fs'", 'may not use readFileSync of node:fs'],
    ["import { createHash, randomBytes } from 'node:crypto'", 'may not use createHash, randomBytes of node:crypto'],
    ["import * as crypto from 'node:crypto'", 'may not use * of node:crypto'],
    ["import pg from 'pg'", 'may not use * of pg'],
    ['export const f = async () => 1', 'awaits'],
    ['export async function* f() { for await (const x of [1]) yield x }', 'awaits'],
    ['export const f = () => fetch("x")', 'uses fetch'],
    ['export const f = () => process.env', 'uses process'],
  ])('the core may not: %s', (text, message) => {
    expect(check({ 'server/src/core/a.ts': text }).join()).toContain(message)
  })

  test('the core may hash and parse, and use names like those of the world', () => {
    const text = `
      import { createHash } from 'node:crypto'
      import { z } from 'zod'
      // Date.now() and setTimeout() in a comment
      export type Clock = { setTimeout: number; process: string }
      export const text = 'await fetch(Date.now())'
      export const day = (ms: number) => new Date(ms).toISOString() + createHash('sha256') + z.string()
      export const of = (clock: Clock) => clock.setTimeout`
    expect(check({ 'server/src/core/a.ts': text })).toEqual([])
  })

  test.each([
    ['Date.now()', 'Date.now'],
    ['new Date()', 'new Date()'],
    ['setTimeout(f, 1)', 'setTimeout'],
    ['globalThis.setInterval(f, 1)', 'setInterval'],
    ['Math.random()', 'Math.random'],
    ['crypto.randomUUID()', 'crypto.randomUUID'],
    ['performance.now()', 'performance.now'],
    ['{ now: Date.now }', 'Date.now'],
    ['[setInterval]', 'setInterval'],
  ])('only the injected files may use %s', (code, use) => {
    const text = `export const x = (f: () => void) => (${code})`
    const rooms = ['server/src/services/', 'server/src/leader/', 'server/src/store/', 'server/src/bus/', 'sdk/src/']
    for (const room of rooms) {
      expect(check({ [`${room}a.ts`]: text })).toEqual([`${room}a.ts uses ${use}; the world is injected.`])
    }
    expect(check({ 'server/src/node/world.ts': text, 'sdk/src/world.ts': text })).toEqual([])
  })

  test('imported functions are checked like globals', () => {
    expect(check({ 'sdk/src/a.ts': "import { randomUUID } from 'node:crypto'" })).toHaveLength(1)
    expect(check({ 'sdk/src/a.ts': "import { setTimeout as sleep } from 'node:timers/promises'" })).not.toEqual([])
  })
})
