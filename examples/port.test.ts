import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { nodeArgs } from '../scripts/testing/services.ts'
import { portFrom } from './port.ts'
import { startControlPlane } from './zpe-h2/control-plane.ts'

const EXAMPLES = ['bookmarks', 'scan-pipeline', 'zpe-h2']
const folder = mkdtempSync(join(tmpdir(), 'ichido-port-'))
const taken = createServer()
beforeAll(() => new Promise<void>((resolve) => void taken.listen(0, '127.0.0.1', resolve)))
afterAll(() => {
  taken.close()
  rmSync(folder, { recursive: true })
})

const portOf = (server: typeof taken) => {
  const address = server.address()
  if (typeof address !== 'object' || address === null) throw new Error('It listens')
  return address.port
}

interface Ended {
  code: number | string | null
  said: string
}

function run(example: string, args: readonly string[], env: Record<string, string>): Promise<Ended> {
  const command = [...nodeArgs, join(import.meta.dirname, example, 'main.ts'), ...args]
  return new Promise((resolve) => {
    const options = { cwd: folder, env: { ...process.env, ...env } }
    execFile(process.execPath, command, options, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : (error.code ?? null), said: stdout + stderr }),
    )
  })
}

test('PORT sets the port; without it the example chooses one', () => {
  expect([portFrom({}, 8006), portFrom({ PORT: '' }, 8006), portFrom({ PORT: '0' }, 8006)]).toEqual([8006, 8006, 0])
  expect(portFrom({ PORT: '9000' }, 0)).toBe(9000)
})

test.each(EXAMPLES)('%s reports an invalid PORT in one sentence', async (example) => {
  const args = example === 'zpe-h2' ? [] : [join(folder, example)]
  expect(await run(example, args, { PORT: 'http' })).toEqual({
    code: 2,
    said: 'PORT must be a whole number from 0 to 65535, not "http".\n',
  })
})

test.each(['bookmarks', 'scan-pipeline'])('%s reports a port that is in use in one sentence', async (example) => {
  const PORT = String(portOf(taken))
  const { code, said } = await run(example, [join(folder, example)], { PORT })
  expect(code).toBe(1)
  expect(said).toContain(`Port ${PORT} is in use. Stop what uses it, or name another one: PORT=`)
  expect(said).not.toMatch(/\n {4}at /)
})

test('the control plane of zpe-h2 listens on the given port', async () => {
  const free = createServer()
  await new Promise<void>((resolve) => void free.listen(0, '127.0.0.1', resolve))
  const port = portOf(free)
  await new Promise((resolve) => free.close(resolve))
  const plane = await startControlPlane(mkdtempSync(join(folder, 'zpe-')), port)
  expect(plane.url).toBe(`https://localhost:${port}`)
  await plane.stop()
})

test.each<[string, string, RegExp]>([
  [
    'nonsense.in',
    'does not exist',
    /^There is no nonsense\.in in .* or examples\/zpe-h2; h2\.in and h2-lda\.in are there\.\n$/,
  ],
  ['README.md', 'is not an input', /^.*README\.md is no input of pw\.x: .+\n$/],
])('zpe-h2 reports in one sentence that %s %s', async (input, _, said) => {
  expect(await run('zpe-h2', [input], {})).toEqual({ code: 2, said: expect.stringMatching(said) })
})
