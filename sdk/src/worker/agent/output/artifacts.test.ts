import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import { LEASE } from '../../testing/plane.ts'
import { httpArtifacts, NotTaken } from './artifacts.ts'
import { FileRefused } from './files.ts'

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

test('files are sent through any outage, until the run is told to stop', async () => {
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
  expect(await given).toContain('cannot be reached')
})

test.each([
  [503, 'ARTIFACTS_OFF'],
  [500, 'INTERNAL'],
])('%i %s is not retried forever', async (status, code) => {
  const world = new FakeWorld()
  const send = vi.fn<typeof fetch>(async () => Response.json({ error: { code } }, { status }))
  vi.stubGlobal('fetch', send)
  const artifacts = httpArtifacts({ url: 'https://plane', token: () => 'token', world })
  let heard: unknown = null
  const sending = artifacts.sendAll(LEASE, folder, new AbortController().signal).catch((error: unknown) => {
    heard = error
  })
  await vi.waitFor(async () => {
    await world.pass(30_000)
    expect(heard).toBeInstanceOf(NotTaken)
  }, WITHIN)
  await sending
  expect(String(heard)).toContain(code)
  expect(send).toHaveBeenCalledTimes(6)
})

test('a refused file is named, and hidden files are not sent', async () => {
  writeFileSync(join(folder, '.DS_Store'), '')
  writeFileSync(join(folder, 'so?'), '')
  const error = { code: 'INVALID_PAYLOAD', message: 'name must be a plain file name', details: { field: 'name' } }
  const names: (string | null)[] = []
  const send = vi.fn<typeof fetch>(async (url) => {
    const name = new URL(String(url)).searchParams.get('name')
    names.push(name)
    return name === 'so?' ? Response.json({ error }, { status: 400 }) : new Response(null, { status: 201 })
  })
  vi.stubGlobal('fetch', send)
  const artifacts = httpArtifacts({ url: 'https://plane', token: () => 'token', world: new FakeWorld() })
  const sending = artifacts.sendAll(LEASE, folder, new AbortController().signal)
  await expect(sending).rejects.toThrow(new FileRefused('outputs/so? was refused: name must be a plain file name'))
  expect(names.toSorted()).toEqual(['out.txt', 'so?'])
})

test('a missing store and a proxy error are retried', async () => {
  const world = new FakeWorld()
  const answers = [
    Response.json({ error: { code: 'UNAVAILABLE' } }, { status: 503 }),
    new Response('<html>', { status: 502 }),
    Response.json({ error: { code: 'UNAUTHENTICATED' } }, { status: 401 }),
  ]
  let calls = 0
  const send = vi.fn<typeof fetch>(async () => answers[calls++ % answers.length]?.clone() ?? new Response())
  vi.stubGlobal('fetch', send)
  const stopping = new AbortController()
  const artifacts = httpArtifacts({ url: 'https://plane', token: () => 'token', world })
  const sending = artifacts.sendAll(LEASE, folder, stopping.signal).catch(String)
  await vi.waitFor(async () => {
    await world.pass(30_000)
    expect(calls).toBeGreaterThan(20)
  }, WITHIN)
  stopping.abort()
  await sending
})

test('a file is closed after each failed call', async () => {
  writeFileSync(join(folder, 'out.txt'), 'x'.repeat(1_000_000))
  const world = new FakeWorld()
  const stopping = new AbortController()
  // No server listens there.
  const artifacts = httpArtifacts({ url: 'http://127.0.0.1:9', token: () => 'token', world })
  const open = () => readdirSync('/proc/self/fd').length
  const before = open()
  const sending = artifacts.sendAll(LEASE, folder, stopping.signal).catch(String)
  let passed = 0
  await vi.waitFor(async () => {
    await world.pass(30_000)
    expect(++passed).toBeGreaterThan(200)
  }, WITHIN)
  stopping.abort()
  await sending
  await vi.waitFor(() => expect(open() - before).toBeLessThan(5), WITHIN)
})
