import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { system } from '../../contract/system.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())
  const read = async () =>
    system.parse(
      await http.services.system
        .read()
        .then((read) => ({ ...read, node: { ...read.node, version: '', node_version: '' } })),
    )

  test('the answer tells of the node, its store and its loops', async () => {
    const { status, body } = await http.call('GET', '/v1/system')
    expect(status).toBe(200)
    expect(body).toMatchObject({
      node: { version: '0.0.0-test', node_version: process.versions.node },
      store: { engine, engine_version: expect.stringMatching(/^\d+\.\d+/), schema_version: expect.any(Number) },
      redis: null,
      loops: [],
    })
    expect(system.parse(body).store.bytes).toBeGreaterThan(10_000)
  })

  test('only the node of the current epoch says that it leads', async () => {
    const { store } = http.services.deps
    await sql(store, 'UPDATE ichido.leadership SET holder = NULL')
    expect((await read()).leader).toMatchObject({ present: false, this_node: false, since: null })
    const { epoch } = await seize(store)
    http.services.system.watch(() => ({ epoch, leadsSinceMs: 1_000, loops: [] }))
    const leading = await read()
    expect(leading.leader).toEqual({ epoch, present: true, this_node: true, since: '1970-01-01T00:00:01.000Z' })
    await seize(store)
    expect((await read()).leader).toEqual({ epoch: epoch + 1, present: true, this_node: false, since: null })
    await sql(store, 'UPDATE ichido.leadership SET expires_at = 1')
    expect((await read()).leader).toMatchObject({ present: false })
  })
})
