import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { killAll, ichido as run, ichidoJson as runJson, serve } from '../testing/cli.ts'
import { connect } from './connect.ts'
import { jobIdOf } from './job-id.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-job-id-test-'))
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const short = (id: string, dots: string) => `${id.slice(0, 13)}${dots}${id.slice(-4)}`

test('each command takes the short id of the dashboard', async () => {
  const { job_id } = await runJson(['submit', 'k', '--queue', 'q'], env)
  for (const dots of ['…', '...']) {
    const given = short(job_id, dots)
    expect((await runJson(['jobs', 'show', given], env)).job_id).toBe(job_id)
    expect((await run(['jobs', 'logs', given], env)).code).toBe(0)
    expect((await run(['jobs', 'artifacts', given], env)).code).toBe(0)
    expect((await run(['events', '--job', given], env)).code).toBe(0)
  }
  expect(await runJson(['jobs', 'cancel', short(job_id, '...')], env)).toMatchObject({ job_id, state: 'CANCELED' })
  expect((await run(['watch', short(job_id, '…')], env)).stderr).toContain('CANCELED')
  expect(await runJson(['jobs', 'retry', short(job_id, '…')], env)).toMatchObject({ job_id, state: 'PENDING' })
  const other = (await runJson(['submit', 'k', '--queue', 'q'], env)).job_id
  const both = [short(job_id, '…'), short(other, '...')]
  expect((await runJson(['jobs', 'cancel', ...both, '--dry-run'], env)).matched).toBe(2)
  const dead = await run(['dead', 'show', short(other, '…')], env)
  expect(dead).toMatchObject({ code: 1, stderr: expect.stringContaining(other) })
})

test('a short id of no job is refused', async () => {
  const { code, stderr } = await run(['jobs', 'show', '01990f3a-7c1e…1d07'], env)
  expect([code, stderr]).toEqual([1, expect.stringContaining('There is no job 01990f3a-7c1e…1d07')])
})

test('a short id of two jobs is refused with both ids', async () => {
  const ids = ['01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07', '01990f3a-7c1e-7b52-9d4e-3f6a8b2d1d07']
  const data = ids.map((job_id) => ({ job_id }))
  const ask = async <T>() => ({ data, next_cursor: null }) as T
  const thrown = jobIdOf({ ...connect(), ask }, '01990f3a-7c1e...1d07')
  await expect(thrown).rejects.toMatchObject({ advice: ids.join('\n') })
})
