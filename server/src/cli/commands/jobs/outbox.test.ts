import { globSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { FileStore, fileFlushLock } from '@ichido/sdk/outbox/node'
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { TcpProxy } from '../../../../../scripts/testing/proxy.ts'
import { realWorld } from '../../../node/world.ts'
import { killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-cli-outbox-test-'))
let proxy: TcpProxy
let env: { ICHIDO_URL: string; XDG_STATE_HOME: string }

beforeAll(async () => {
  const { url } = await serve({ DATA_DIR: join(folder, 'data') })
  const before = await TcpProxy.before(url)
  proxy = before.proxy
  env = { ICHIDO_URL: before.url, XDG_STATE_HOME: '' }
})
beforeEach(() => {
  env.XDG_STATE_HOME = mkdtempSync(join(folder, 'state-'))
  online()
})
afterAll(async () => {
  await proxy.close()
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]) => run(args, env)
const json = (...args: string[]) => runJson(args, env)
const online = () => {
  proxy.rule = () => 'pass'
}
const offline = () => {
  proxy.rule = () => 'cut'
}
const files = () => globSync(join(env.XDG_STATE_HOME, 'ichido/outbox/**/outbox.jsonl'))
const store = ([path = ''] = files()) => new FileStore({ path, world: realWorld, warn: () => {} })
const jobsOf = async (key: string) => (await json('jobs', 'list', '--key', key)).data.length

describe('submit --offline', () => {
  test('keeps a job during an outage; flush sends all in order, once', async () => {
    offline()
    const kept = await ichido('submit', 'sort', '--payload', '{"n":1}', '--key', 'kept/1', '--offline')
    expect(kept.code).toBe(0)
    expect(kept.stderr).toContain(`No server answers at ${env.ICHIDO_URL.replace(/\/$/, '')}`)
    expect(kept.stderr).toContain(`kept here as item ${kept.stdout.trim()}, with the key kept/1. Send it with`)
    const second = await json('submit', 'sort', '--offline')
    expect(second).toMatchObject({ kind: 'sort', status: 'queued', attempts: 0, job_id: null })

    const listed = await ichido('outbox', 'list')
    expect(listed.stdout).toMatch(/^ITEM .*\n.* queued +0 .* sort +kept\/1 +\n.* queued +0 .* sort +outbox-/)
    const early = await ichido('outbox', 'flush')
    expect(early.code).toBe(1)
    expect(early.stderr).toContain('2 not sent: No server answers')

    // It arrives, and the answer does not.
    proxy.rule = ({ direction, data }) => (direction === 'down' && String(data).includes('201') ? 'cut' : 'pass')
    expect((await ichido('outbox', 'flush')).code).toBe(1)
    online()
    expect(await jobsOf('kept/1')).toBe(1)
    const flushed = await json('outbox', 'flush')
    expect(flushed.left).toBe(0)
    expect(flushed.data.map(({ key, status }: { key: string; status: string }) => [key, status])).toEqual([
      ['kept/1', 'sent'],
      [second.key, 'sent'],
    ])
    expect(await jobsOf('kept/1')).toBe(1)
    expect(await json('outbox', 'list')).toEqual({ data: [] })
  })

  test('sends a job at once if the server answers, after the kept ones', async () => {
    offline()
    await ichido('submit', 'first', '--key', 'before/1', '--offline')
    online()
    const { code, stdout } = await ichido('submit', 'second', '--offline')
    expect(code).toBe(0)
    expect(await json('jobs', 'show', stdout.trim())).toMatchObject({ kind: 'second' })
    expect(await jobsOf('before/1')).toBe(1)
    expect((await ichido('outbox', 'list')).stderr).toContain('The outbox is empty.')
  })

  test('does not keep a refused job, and reports the reason', async () => {
    const refused = await ichido('submit', 'k', '--max-attempts', '-1', '--offline')
    expect(refused.code).toBe(2)
    expect(refused.stderr).toContain('--max-attempts must be at least 1')
    expect(await json('outbox', 'list')).toEqual({ data: [] })

    // Also one that was kept and failed, when it is asked for again.
    await ichido('submit', 'k', '--payload', '1', '--key', 'again/1')
    offline()
    const again = ['submit', 'k', '--payload', '2', '--key', 'again/1', '--offline']
    expect((await ichido(...again)).code).toBe(0)
    online()
    expect((await ichido('outbox', 'flush')).code).toBe(1)
    expect((await ichido(...again)).stderr).toContain('(IDEMPOTENCY_KEY_REUSED)')
    expect(await json('outbox', 'list')).toEqual({ data: [] })
  })

  test('a repeated key with its delay is the same item and the same job', async () => {
    const again = () => json('submit', 'sort', '--delay', '1h', '--key', 'delayed/1', '--offline')
    offline()
    const { item_id } = await again()
    expect(await again()).toMatchObject({ item_id, status: 'queued' })
    online()
    const { job_id } = await again()
    expect(await again()).toMatchObject({ status: 'sent', job_id })
    const { created_at, run_at } = await json('jobs', 'show', job_id)
    expect(Date.parse(run_at) - Date.parse(created_at)).toBe(3_600_000)
  })

  test('does not use up attempts of items that wait for their next one', async () => {
    offline()
    const { item_id } = await json('submit', 'k', '--key', 'waits/1', '--offline')
    const dueAtMs = realWorld.now() + 1_800_000
    await store().update(item_id, { attempts: 1, status: 'queued', dueAtMs, error: 'answered 503' })
    online()
    await ichido('submit', 'k', '--key', 'new/1', '--offline')
    expect(await jobsOf('new/1')).toBe(1)
    expect((await json('outbox', 'list')).data).toMatchObject([{ item_id, status: 'queued', attempts: 1 }])
  })

  test('does not delete an item that another process tried', async () => {
    offline()
    await ichido('submit', 'k', '--offline')
    const [path = ''] = files()
    const progress = { attempts: 1, status: 'failed', dueAtMs: 0, error: 'refused there' } as const
    const meanwhile = fileFlushLock(path, realWorld)
    const { signal } = new AbortController()
    const submitted = await meanwhile(async () => {
      const ended = ichido('submit', 'k', '--key', 'both/1', '--offline')
      const item = await vi.waitUntil(async () => (await store().list()).find(({ key }) => key === 'both/1'), 20_000)
      await store().update(item.id, progress)
      return { ended }
    }, signal)
    const { code, stderr } = await submitted.ended
    expect(code).toBe(1)
    expect(stderr).toContain('refused there')
    expect(stderr).toMatch(/It is kept here as item \S+; see `.*outbox list`/)
    expect((await json('outbox', 'list')).data).toMatchObject([{}, { key: 'both/1', status: 'failed' }])
  })

  test.each([
    [['--key', 'two words'], 'must be visible ASCII (letters, digits and punctuation, no spaces)'],
    [['--wait'], "'--offline' cannot be used with option '-w, --wait'"],
  ])('%j is refused', async (args, message) => {
    const { code, stderr } = await ichido('submit', 'k', '--offline', ...args)
    expect(code).toBe(2)
    expect(stderr).toContain(message)
  })
})

describe('outbox', () => {
  test('a failed item does not block others, and can be retried or dropped', async () => {
    await ichido('submit', 'k', '--payload', '1', '--key', 'poison/1')
    offline()
    const poison = await json('submit', 'k', '--payload', '2', '--key', 'poison/1', '--offline')
    await ichido('submit', 'k', '--key', 'after/1', '--offline')
    online()
    const flushed = await ichido('outbox', 'flush')
    expect(flushed.code).toBe(1)
    expect(flushed.stderr).toContain('1 not sent: ')
    expect(await jobsOf('after/1')).toBe(1)
    expect((await json('outbox', 'list')).data).toMatchObject([
      { item_id: poison.item_id, status: 'failed', attempts: 1 },
    ])

    expect((await json('outbox', 'flush')).data).toEqual([])
    expect((await ichido('outbox', 'flush', poison.item_id)).code).toBe(1)
    const nobody = '01a1e150-0f86-71de-92fc-23ac1bcde25e'
    const unknown = await ichido('outbox', 'drop', poison.item_id, nobody)
    expect(unknown.code).toBe(1)
    expect(unknown.stderr).toContain(`There is no item ${nobody} in the outbox`)
    expect((await ichido('outbox', 'drop', poison.item_id)).stderr).toContain('1 dropped.')
    expect(await json('outbox', 'list')).toEqual({ data: [] })
  })

  test('belongs to one token: another one does not send it, but sees a hint', async () => {
    const alice = { ...env, ICHIDO_TOKEN: 'ich_alice' }
    const bob = { ...env, ICHIDO_TOKEN: 'ich_bob' }
    offline()
    await run(['submit', 'k', '--key', 'mine/1', '--offline'], alice)
    const [path = ''] = files()
    expect(path).not.toContain('alice')
    online()
    expect(await runJson(['outbox', 'flush'], bob)).toEqual({ data: [], left: 0 })
    const { stdout, stderr } = await run(['outbox', 'list', '--json'], bob)
    expect(JSON.parse(stdout)).toEqual({ data: [] })
    expect(stderr).toContain(`1 more kept for this server with another ICHIDO_TOKEN: ${path}`)

    // Her token was replaced: what the advice says gives the new one what the old one kept.
    const [, to = ''] = /move the file to (\S+)/.exec(stderr) ?? []
    renameSync(path, to)
    const listed = await run(['outbox', 'list'], bob)
    expect(listed.stdout).toContain('mine/1')
    expect(listed.stderr).toBe('')
  })

  test('belongs to one server, by scheme and path', async () => {
    const { host } = new URL(env.ICHIDO_URL)
    offline()
    const urls = [`http://${host}`, `https://${host}`, `http://${host}/a/b`, `http://${host}/a_b`]
    for (const ICHIDO_URL of [...urls, `http://${host}/`]) {
      await run(['submit', 'k', '--key', 'same/1', '--offline'], { ...env, ICHIDO_URL })
    }
    expect(files()).toHaveLength(4)
  })

  test('reports a damaged file and keeps the readable items', async () => {
    offline()
    await ichido('submit', 'k', '--key', 'sound/1', '--offline')
    const [path = ''] = files()
    writeFileSync(path, 'torn', { flag: 'a' })
    const { code, stdout, stderr } = await ichido('outbox', 'list')
    expect(code).toBe(0)
    expect(stdout).toContain('sound/1')
    expect(stderr).toContain(`warning: One line of ${path} cannot be read (line 3: it is incomplete)`)
    online()
    expect((await ichido('outbox', 'flush')).code).toBe(0)
  })
})
