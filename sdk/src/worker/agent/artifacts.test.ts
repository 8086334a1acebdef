import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { LEASE } from '../testing/plane.ts'
import { httpArtifacts } from './artifacts.ts'

const WITHIN = { timeout: 15_000, interval: 1 }

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-artifacts-'))
  writeFileSync(join(folder, 'out.txt'), 'output')
})
afterEach(() => {
  vi.unstubAllGlobals()
  rmSync(folder, { recursive: true })
})

test('files are sent through an outage, however long, and no longer when the run is told to stop', async () => {
  const world = new FakeWorld()
  const stopping = new AbortController()
  const send = vi.fn<typeof fetch>(async () => {
    throw new TypeError('fetch failed')
  })
  vi.stubGlobal('fetch', send)
  const artifacts = httpArtifacts({ url: 'https://plane', token: () => 'token', world })
  const tried = (times: number) =>
    vi.waitFor(async () => {
      await world.pass(30_000)
      expect(send.mock.calls.length).toBeGreaterThanOrEqual(times)
    }, WITHIN)
  const sent = artifacts.sendAll(LEASE, folder, stopping.signal)
  await tried(50)
  send.mockImplementation(async () => new Response(null, { status: 201 }))
  await tried(51)
  await sent
  send.mockRejectedValue(new TypeError('fetch failed'))
  const given = artifacts.sendAll(LEASE, folder, stopping.signal).catch(String)
  await tried(53)
  stopping.abort()
  expect(await given).toContain('out of reach')
})
