import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { cacheDir, cached } from './fetch-packages.mjs'
import { withLock } from './lock.mjs'

const folder = mkdtempSync(join(tmpdir(), 'ichido-boot-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('run()', () => {
  /** Starts a process that runs `code` in a child through run(), and waits for the child's first line. */
  async function started(code: string): Promise<ChildProcess> {
    const module = pathToFileURL(join(import.meta.dirname, 'run.mjs')).href
    const wrapper = `import { run } from ${JSON.stringify(module)}
      await run(process.execPath, ['--eval', ${JSON.stringify(code)}], {})`
    const env = { ...process.env, npm_lifecycle_event: '' }
    const child = spawn(process.execPath, ['--input-type=module', '--eval', wrapper], {
      env,
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    if (child.stdout) await once(createInterface(child.stdout), 'line')
    return child
  }

  test('run() exits with the exit code of its child', async () => {
    const child = await started("console.log('up'); process.exitCode = 7")
    expect(await once(child, 'exit')).toEqual([7, null])
  })

  test.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)(
    'run() passes %s on once, and waits for a graceful end',
    async (name) => {
      const code = `let n = 0
      process.on('${name}', () => { n += 1; setTimeout(() => process.exit(40 + n), 100) })
      setInterval(() => {}, 1000)
      console.log('up')`
      const child = await started(code)
      child.kill(name)
      child.kill(name)
      expect(await once(child, 'exit')).toEqual([41, null])
    },
  )

  test('run() dies of the same signal as its child', async () => {
    const child = await started("console.log('up'); setInterval(() => {}, 1000)")
    child.kill('SIGTERM')
    expect(await once(child, 'exit')).toEqual([null, 'SIGTERM'])
  })
})

describe('withLock()', () => {
  const path = join(folder, 'a.lock')

  test('withLock() lets one caller in at a time', async () => {
    let inside = 0
    let most = 0
    const work = async () => {
      inside += 1
      most = Math.max(most, inside)
      await new Promise((resolve) => setImmediate(resolve))
      inside -= 1
    }
    await Promise.all(Array.from({ length: 5 }, () => withLock(path, () => {}, work)))
    expect(most).toBe(1)
    expect(existsSync(path)).toBe(false)
  })

  test('the lock is free after a failure, and after its holder was killed', async () => {
    const fail = () => Promise.reject(new Error('no'))
    await expect(withLock(path, () => {}, fail)).rejects.toThrow('no')
    writeFileSync(path, 'somebody')
    const longAgo = new Date(Date.now() - 60_000)
    utimesSync(path, longAgo, longAgo)
    expect(
      await withLock(
        path,
        () => {},
        async () => readFileSync(path, 'utf8'),
      ),
    ).not.toBe('somebody')
  })
})

describe('cached()', () => {
  const name = `boot-test-${randomBytes(4).toString('hex')}`
  afterAll(() => rmSync(join(cacheDir, name), { recursive: true, force: true }))
  const fill = async (path: string) => writeFileSync(join(path, 'whole'), '')
  const leftovers = () => readdirSync(cacheDir).filter((entry) => entry.startsWith(`.tmp-${name}`))

  test('a fetch that fails leaves nothing behind', async () => {
    const broken = async (path: string) => {
      writeFileSync(join(path, 'half'), '')
      throw new Error('cut off')
    }
    await expect(cached(name, 'a fetch that fails', broken)).rejects.toThrow('cut off')
    expect(existsSync(join(cacheDir, name))).toBe(false)
    expect(leftovers()).toEqual([])
  })

  test('of several concurrent fetches one complete folder is kept', async () => {
    const paths = await Promise.all([1, 2, 3].map(() => cached(name, 'three at once', fill)))
    expect(new Set(paths)).toEqual(new Set([join(cacheDir, name)]))
    expect(readdirSync(join(cacheDir, name))).toEqual(['whole'])
    expect(leftovers()).toEqual([])
  })
})
