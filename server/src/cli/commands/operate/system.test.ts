import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { SystemShape } from '@ichido/sdk/protocol'
import { afterAll, expect, test } from 'vitest'
import { until } from '../../../testing/store/store.ts'
import { ichido, ichidoJson, killAll, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-system-test-'))
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

test('a running server tells that it leads, and when its loops last ran', async () => {
  const env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
  const read = async () => (await ichidoJson(['system'], env)) as SystemShape
  await until('the reaper to have run', async () =>
    (await read()).loops.some(({ name, last_run_at }) => name === 'reap' && last_run_at !== null),
  )
  const { leader, loops, disks } = await read()
  expect(leader).toEqual({
    epoch: expect.any(Number),
    present: true,
    this_node: true,
    since: expect.stringMatching(/^20/),
  })
  expect(loops.filter(({ late }) => late)).toEqual([])
  expect(disks).toMatchObject([{ folder }])
  const { stdout } = await ichido(['system'], env)
  expect(stdout).toMatch(/^leader +this node, epoch \d+$/m)
  expect(stdout).toMatch(/^late loops +none$/m)
})
