import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Ended, killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-callbacks-test-'))
let env = { ICHIDO_URL: '' }

beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]): Promise<Ended> => run(args, env)
const json = (...args: string[]) => runJson(args, env)

test('a job is submitted with a callback, shown, and its message is listed and redriven', async () => {
  expect(await ichido('callbacks', 'list')).toMatchObject({ code: 0, stdout: '', stderr: 'No deliveries.\n' })
  const refused = await ichido('submit', 'work', '--callback-url', 'http://127.0.0.1:9/ended')
  expect(refused.code).toBe(2)
  expect(refused.stderr).toContain('callback_url must begin with https://')
  await ichido('settings', 'set', 'webhooks_allow_private', '1')
  const url = 'http://127.0.0.1:9/ended'
  const { job_id: jobId } = await json('submit', 'work', '--callback-url', url)
  expect((await ichido('jobs', 'show', jobId)).stdout).toMatch(new RegExp(`^callback +${url}$`, 'm'))
  expect((await ichido('callbacks', 'redrive', jobId)).stderr).toContain('There is no message')
  await ichido('jobs', 'cancel', jobId)
  await expect
    .poll(async () => (await ichido('callbacks', 'list')).stdout, { timeout: 30_000 })
    .toContain('ECONNREFUSED')
  expect((await ichido('callbacks', 'list', '--state', 'dead')).stdout).toBe('')
  expect((await ichido('jobs', 'show', jobId)).stdout).toMatch(
    /^callback +\S+ \(pending after \d+ tr\w+: .*ECONNREFUSED/m,
  )
  const { callback } = await json('jobs', 'show', jobId)
  const redriven = await ichido('callbacks', 'redrive', jobId)
  expect(redriven.stderr).toContain(`The delivery ${callback.delivery.delivery_id} will be sent again.`)
  expect(await json('callbacks', 'redrive')).toEqual({ redriven: 0 })
})

test('the secret is shown and rotated', async () => {
  const first = await json('callbacks', 'secret')
  expect(first).toEqual({ user_id: 'local', secret: expect.stringMatching(/^whsec_/), old_secret_until: null })
  const rotated = await ichido('callbacks', 'rotate')
  expect(rotated.stdout).toMatch(/^old secret +valid until /m)
  expect(rotated.stdout).not.toContain(first.secret)
  expect((await json('callbacks', 'secret', '--user', 'ann')).user_id).toBe('ann')
})
