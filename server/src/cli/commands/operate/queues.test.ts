import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Ended, killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-queues-test-'))
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]): Promise<Ended> => run(['queues', ...args], env)
const json = (...args: string[]) => runJson(['queues', ...args], env)

test('queues are listed, paused, limited and shown; mistakes come with advice', async () => {
  expect((await ichido('list')).stderr).toBe('No queues.\n')
  await run(['submit', 'work', '--queue', 'train'], env)
  const paused = await ichido('pause', 'train')
  expect(paused.stdout).toMatch(/queue +train\npaused +since 20.*\nready +1\n/)
  expect((await ichido('list')).stdout).toMatch(/QUEUE .*\ntrain +1 +0 +0 +- +\d+ s +paused/)
  expect(await json('resume', 'train')).toMatchObject({ paused: false, max_concurrent: null })

  const set = ['--max-concurrent', '2', '--continuation', '15m', '--lease-ttl', '30s', '--result-ttl', '1d']
  expect(await json('set', 'train', ...set)).toMatchObject({
    max_concurrent: 2,
    continuation_seconds: 900,
    lease_ttl_seconds: 30,
    result_ttl_seconds: 86_400,
  })
  expect(await json('set', 'train', '--max-concurrent', 'none')).toMatchObject({
    max_concurrent: null,
    continuation_seconds: 900,
  })
  expect(await json('set', 'train', '--fatal-codes', 'BAD_INPUT, NO_LICENSE')).toMatchObject({
    fatal_error_codes: ['BAD_INPUT', 'NO_LICENSE'],
  })
  expect(await json('set', 'train', '--fatal-codes', 'none')).toMatchObject({ fatal_error_codes: null })
  expect((await ichido('show', 'train')).stdout).toMatch(/max concurrent +none\nlease +30 s\ncontinuation +900 s/)

  expect(await ichido('set', 'train')).toMatchObject({ code: 2, stderr: expect.stringContaining('--max-concurrent') })
  expect(await ichido('set', 'train', '--lease-ttl', 'soon')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('a time like 30s, 10m, 2h or 7d'),
  })
  expect(await ichido('set', 'train', '--max-concurrent', '0')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('max_concurrent'),
  })
})

test('a list of several pages of queues is shown completely', async () => {
  const names = Array.from({ length: 201 }, (_, i) => `many-${String(i).padStart(3, '0')}`)
  const jobs = names.map((queue) => ({ kind: 'work', queue }))
  const headers = { 'content-type': 'application/json' }
  await fetch(`${env.ICHIDO_URL}/v1/jobs/batch`, { method: 'POST', headers, body: JSON.stringify({ jobs }) })
  const { data, next_cursor } = await json('list')
  expect(data.map(({ name }: { name: string }) => name)).toEqual([...names, 'train'])
  expect(next_cursor).toBeNull()
})
