import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TriggerDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { until } from '../../../testing/store/store.ts'
import { ichidoJson as json, killAll, ichido as run, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-triggers-test-'))
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]) => run(args, env)

test('a trigger is sent once, listed and shown with the job that it made', async () => {
  expect((await ichido('triggers', 'list')).stderr).toBe('No triggers.\n')
  const rule = ['--topic', 'order.paid', '--where', 'test=false', '--where', 'shop=main']
  const payload = '{"order": {"$from": "id"}}'
  expect(
    await ichido('definitions', 'create', 'ship-paid', '--kind', 'ship', '--payload', payload, ...rule),
  ).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/on +topic order.paid, test = false, shop = "main", when paused keep/),
  })
  expect(await json(['definitions', 'update', 'ship-paid', '--queue', 'shipping'], env)).toMatchObject({
    queue: 'shipping',
    on: { topic: 'order.paid', where: { test: false, shop: 'main' }, when_paused: 'keep' },
  })
  const send = [
    'triggers',
    'send',
    'order.paid',
    '--dedupe-key',
    'paid-7',
    '--data',
    '{"id": 7, "test": false, "shop": "main"}',
  ]
  const sent = await ichido(...send)
  const id = sent.stdout.trim()
  expect(sent).toMatchObject({ code: 0, stderr: expect.stringContaining(`triggers show ${id}`) })
  expect(await json(send, env)).toMatchObject({ trigger_id: id, duplicate: true })
  const settled = await until('the job of the trigger', async () => {
    const shown: TriggerDetail = await json(['triggers', 'show', id], env)
    return shown.state === 'processed' ? shown : undefined
  })
  const jobId = settled.outcomes[0]?.job_id ?? ''
  expect(await json(['jobs', 'show', jobId], env)).toMatchObject({ kind: 'ship', payload: { order: 7 } })
  expect((await ichido('triggers', 'show', id)).stdout).toMatch(new RegExp(`ship-paid +job +${jobId} +-`))
  expect(await json(['definitions', 'update', 'ship-paid', '--payload', 'null', '--no-on'], env)).toMatchObject({
    on: null,
  })
  expect((await ichido('triggers', 'list', '--topic', 'order.paid')).stdout).toContain(`ship-paid: ${jobId}`)
})

test('a hook is made, shown without its secret and deleted', async () => {
  const made = await ichido('hooks', 'put', 'shop', '--topic', 'shop', '--scheme', 'standard')
  expect(made).toMatchObject({ code: 0, stderr: expect.stringContaining('it is not shown again') })
  expect(made.stdout).toMatch(/secret +whsec_/)
  expect(made.stdout).toContain(`${env.ICHIDO_URL}/v1/hooks/shop`)
  expect((await ichido('hooks', 'show', 'shop')).stdout).not.toContain('whsec_')
  const file = join(folder, 'secret')
  writeFileSync(file, 'a secret of github\n')
  const hub = ['hooks', 'put', 'hub', '--topic', 'hub', '--scheme', 'github', '--secret', `@${file}`]
  expect(await json(hub, env)).toMatchObject({ scheme: 'github', secret: null })
  expect((await ichido('hooks', 'list')).stdout).toMatch(/hub +github +hub .*\nshop +standard +shop /)
  expect(await ichido('hooks', 'delete', 'hub')).toMatchObject({ code: 0 })
  expect(await ichido('hooks', 'show', 'hub')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('no hook hub'),
  })
})

test.each([
  ['a scheme that is unknown', ['hooks', 'put', 'h', '--topic', 't', '--scheme', 'md5'], '--scheme'],
  ['no topic', ['hooks', 'put', 'h', '--scheme', 'github'], '--topic'],
  [
    'a secret on the command line',
    ['hooks', 'put', 'h', '--topic', 't', '--scheme', 'github', '--secret', 'abc'],
    '@file',
  ],
  ['data that is no JSON', ['triggers', 'send', 't', '--data', 'oops'], '--data'],
  ['a condition without a value', ['definitions', 'create', 'd', '--where', 'path'], '--where'],
  ['an unknown state', ['triggers', 'list', '--state', 'lost'], '--state'],
])('%s is a usage error that names the option', async (_, args, named) => {
  expect(await ichido(...args)).toMatchObject({ code: 2, stderr: expect.stringContaining(named) })
})
