import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { readPlans, rowsTouched } from '../../testing/store/explain.ts'
import { Scene } from '../../testing/store/scene.ts'
import { eachEngine, sql, unique } from '../../testing/store/store.ts'
import { cancelJob } from '../jobs/cancel-or-delete.ts'
import { putQueue } from '../leasing/queues.ts'
import { clearQuota, setQuota } from '../limits/quotas.ts'
import type { Command, Store } from '../port.ts'
import { changeSetting, findSettings } from '../system/settings.ts'
import { type AuditEntry, type AuditFilter, type By, listAudit } from './audit.ts'

/** Concurrent and retried changes: each audit entry continues where the one before ended. */

const by = (actor = 'ann'): By => ({ id: v7(), actor })
const again = <T>(command: Command<T>): Command<T> => ({ ...command, work: () => command.work(true) })

/** Oldest first. */
async function told(store: Store, subject: string): Promise<AuditEntry[]> {
  const filter = { actor: null, action: null, subject, fromMs: null, toMs: null }
  return (await store.read(listAudit(filter, 1_000, null))).rows.toReversed()
}
const changes = async (store: Store, subject: string) =>
  (await told(store, subject)).map(({ before, after }) => [before, after])

describe('two nodes', () => {
  const nodes = twoNodes()

  async function stored(name: string): Promise<unknown> {
    return (await nodes.a().read(findSettings())).find((setting) => setting.name === name)?.value
  }

  test('two first changes of a setting: the second sees the first', async () => {
    const name = unique('setting')
    await nodes.meet(changeSetting(name, 1, by()), changeSetting(name, 2, by('bob')))
    expect(await told(nodes.a(), name)).toMatchObject([
      { actor: 'ann', action: 'setting.put', before: null, after: { value: 1 } },
      { actor: 'bob', action: 'setting.put', before: { value: 1 }, after: { value: 2 } },
    ])
    expect(await stored(name)).toBe(2)
  })

  test('the same change twice at once is recorded once', async () => {
    const name = unique('setting')
    await nodes.meet(changeSetting(name, 1, by()), changeSetting(name, 1, by('bob')))
    expect(await changes(nodes.a(), name)).toEqual([[null, { value: 1 }]])
  })

  test('a change during a reset', async () => {
    const name = unique('setting')
    await nodes.a().write(changeSetting(name, 1, by()))
    await nodes.meet(changeSetting(name, null, by()), changeSetting(name, 3, by()))
    expect(await changes(nodes.a(), name)).toEqual([
      [null, { value: 1 }],
      [{ value: 1 }, null],
      [null, { value: 3 }],
    ])
    await nodes.meet(changeSetting(name, 4, by()), changeSetting(name, null, by()))
    expect(await stored(name)).toBeNull()
  })

  test('many changes from both nodes leave unbroken chains', async () => {
    const [name, user, queue] = [unique('setting'), unique('user'), unique('queue')]
    const count = size(20, 400)
    const limits = (maxConcurrent: number) => ({ maxConcurrent, costLimitMicros: null, period: 'day' }) as const
    await Promise.all(
      [nodes.a(), nodes.b()].map(async (node, n) => {
        for (let i = 1; i <= count; i++) {
          const value = 2 * i + n
          await Promise.all([
            node.write(changeSetting(name, i % 5 === 0 ? null : value, by())),
            i % 5 === 0 ? node.write(clearQuota(user, by())) : node.write(setQuota(user, limits(value), by())),
            node.write(putQueue(queue, { maxConcurrent: value }, by())),
          ])
        }
      }),
    )
    for (const subject of [name, user, queue]) {
      const entries = await told(nodes.a(), subject)
      expect(entries.length).toBeGreaterThan(count)
      // Within one millisecond the order of ids is not that of the commits.
      const chain = inOrder(entries)
      for (const [i, entry] of chain.entries()) {
        if (i > 0) expect(entry.before).toEqual(chain[i - 1]?.after)
      }
    }
  })

  test('a page of a large audit reads little more than the page', async () => {
    const bulk = `INSERT INTO ichido.audit (id, actor, action, subject, created_at)
      SELECT gen_random_uuid(), CASE WHEN n % 1000 = 0 THEN 'rare' ELSE 'often' END,
        CASE WHEN n % 1000 = 0 THEN 'rare.do' ELSE 'often.do' END, 'bulk-' || n, n FROM generate_series($1::integer, $2::integer) n`
    const count = size(8_000, 1_000_000)
    // No statement of a store may take longer than 10 s.
    const part = 8_000
    for (let n = 1; n <= count; n += part) await sql(nodes.a(), bulk, n, n + part - 1)
    const client = new pg.Client(nodes.url())
    await client.connect()
    await client.query('VACUUM ANALYZE ichido.audit')
    await client.end()
    const all: AuditFilter = { actor: null, action: null, subject: null, fromMs: null, toMs: null }
    const { next } = await nodes.a().read(listAudit({ ...all, toMs: count / 2 }, 10, null))
    for (const [filter, after] of [
      [all, null],
      [all, next],
      [{ ...all, actor: 'rare' }, null],
      [{ ...all, action: 'rare.do' }, null],
      [{ ...all, subject: 'bulk-77' }, null],
      [{ ...all, actor: 'often', fromMs: 10, toMs: 20 }, null],
      [{ ...all, actor: 'often' }, next],
    ] as const) {
      const plans = await readPlans(nodes.a(), listAudit(filter, 10, after))
      for (const plan of plans) expect(rowsTouched(plan), JSON.stringify([filter, plan])).toBeLessThanOrEqual(30)
    }
  })

  test('two cancels at once are recorded once', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await scene.submitted()
    const outcomes = await nodes.meet(cancelJob(jobId, by()), cancelJob(jobId, by('bob')))
    expect(outcomes).toEqual([{ kind: 'canceled', queue: scene.queue, jobKind: 'work' }, { kind: 'repeated' }])
    const { jobId: running } = await scene.running()
    await nodes.meet(cancelJob(running, by()), cancelJob(running, by('bob')))
    for (const id of [jobId, running]) expect(await told(nodes.a(), id)).toMatchObject([{ actor: 'ann' }])
  })
})

/** Orders entries of the same millisecond so that each begins where the one before ended, if possible. */
function inOrder(entries: readonly AuditEntry[]): AuditEntry[] {
  const left = [...entries]
  const chain: AuditEntry[] = []
  for (let last: unknown = entries[0]?.before ?? null; left.length > 0; last = chain.at(-1)?.after) {
    const now = left[0]?.createdAtMs
    const next = left.findIndex(
      (entry) => entry.createdAtMs === now && JSON.stringify(entry.before) === JSON.stringify(last),
    )
    chain.push(...left.splice(Math.max(0, next), 1))
  }
  return chain
}

eachEngine(({ store }) => {
  test('a retry after an uncertain commit undoes no later change', async () => {
    const [name, user, queue] = [unique('setting'), unique('user'), unique('queue')]
    const quota = (maxConcurrent: number) => ({ maxConcurrent, costLimitMicros: null, period: 'day' }) as const
    const commands: [string, Command<unknown>, Command<unknown>][] = [
      [name, changeSetting(name, 1, by()), changeSetting(name, 2, by('bob'))],
      [user, setQuota(user, quota(1), by()), setQuota(user, quota(2), by('bob'))],
      [queue, putQueue(queue, { maxConcurrent: 1 }, by()), putQueue(queue, { maxConcurrent: 2 }, by('bob'))],
    ]
    for (const [subject, first, second] of commands) {
      await store().write(first)
      await store().write(second)
      await store().write(again(first))
      await store().write(again(second))
      expect((await told(store(), subject)).map(({ actor }) => actor)).toEqual(['ann', 'bob'])
    }
    expect((await store().read(findSettings())).find((setting) => setting.name === name)?.value).toBe(2)
    const cleared = clearQuota(user, by())
    await store().write(cleared)
    await store().write(setQuota(user, quota(3), by()))
    await store().write(again(cleared))
    expect(await changes(store(), user)).toHaveLength(4)
    const limits = 'SELECT max_concurrent FROM ichido.quotas WHERE user_id = $1'
    expect(await sql(store(), limits, user)).toEqual([{ max_concurrent: 3 }])
  })
})

test('no statement changes an entry, and only retention removes entries', () => {
  const folder = join(import.meta.dirname, '..')
  const files = globSync('*/*.ts', { cwd: folder }).filter((file) => !/\.test\.ts$|^conformance\//.test(file))
  const writing = files.flatMap((file) => {
    const source = readFileSync(join(folder, file), 'utf8')
    const found = source.match(/(?:INSERT INTO|UPDATE|DELETE FROM|TRUNCATE) ichido\.audit\b/g) ?? []
    return [...new Set(found)].map((verb) => `${file}: ${verb.split(' ')[0]}`)
  })
  expect(writing.sort()).toEqual(['access/audit.ts: INSERT', 'system/retention.sql.ts: DELETE'])
})
