import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from '../boot/fetch-packages.mjs'
import type { LockFile } from '../boot/lock-file.mjs'
import { billOfMaterials } from './bill.ts'

const lock: LockFile = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
const GIVEN = { serial: '00000000-0000-4000-8000-000000000000', timestamp: '2026-01-01T00:00:00.000Z' }

interface Bill {
  bomFormat: string
  metadata: { component: { name: string } }
  components: { name: string; group?: string; version: string; purl: string; hashes?: { content: string }[] }[]
  dependencies: { ref: string; dependsOn: string[] }[]
}

test('the command prints a bill with every shipped package of the lock file', () => {
  const text = execFileSync(process.execPath, ['scripts/boot.mjs', 'sbom'], { cwd: root, encoding: 'utf8' })
  const bill: Bill = JSON.parse(text)
  const listed = bill.components.map(({ group, name, version }) => `${group ? `${group}/` : ''}${name}@${version}`)
  const shipped = Object.entries(lock.packages)
    .filter(([path, { dev, link }]) => path.includes('node_modules/') && !dev && !link)
    .map(([path, { version }]) => `${path.replace(/^.*node_modules\//, '')}@${version}`)
  expect(shipped.length).toBeGreaterThan(50)
  expect(new Set(listed)).toEqual(new Set([...shipped, `@ichido/sdk@${lock.packages.sdk?.version}`]))
  expect(bill).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { group: '@ichido', name: 'server' } } })
  const fastify = bill.components.find(({ name }) => name === 'fastify')
  const integrity = lock.packages['node_modules/fastify']?.integrity ?? ''
  expect(fastify?.hashes?.[0]?.content).toBe(Buffer.from(integrity.slice(7), 'base64').toString('hex'))
  const known = new Set(bill.dependencies.map(({ ref }) => ref))
  const used = bill.dependencies.flatMap(({ dependsOn }) => dependsOn)
  expect(used.filter((ref) => !known.has(ref))).toEqual([])
})

test('the same lock file gives the same bill', () => {
  expect(billOfMaterials(lock, GIVEN)).toEqual(billOfMaterials(structuredClone(lock), GIVEN))
  const shuffled = { packages: Object.fromEntries(Object.entries(lock.packages).reverse()) }
  expect(JSON.stringify(billOfMaterials(shuffled, GIVEN).components.map(({ purl }) => purl))).toEqual(
    JSON.stringify(billOfMaterials(lock, GIVEN).components.map(({ purl }) => purl)),
  )
})

test('two versions of a package are both listed once', () => {
  const small: LockFile = {
    packages: {
      '': {},
      server: { name: 'ichido', version: '1.0.0', dependencies: { a: '1', b: '1' } },
      'node_modules/ichido': { resolved: 'server', link: true },
      'node_modules/a': { version: '1.0.0', dependencies: { b: '2' } },
      'node_modules/a/node_modules/b': { version: '2.0.0' },
      'node_modules/b': { version: '1.0.0' },
      'node_modules/c': { version: '1.0.0', dev: true },
    },
  }
  const { components, dependencies } = billOfMaterials(small, GIVEN)
  expect(components.map(({ purl }) => purl)).toEqual(['pkg:npm/a@1.0.0', 'pkg:npm/b@1.0.0', 'pkg:npm/b@2.0.0'])
  expect(dependencies.find(({ ref }) => ref === 'pkg:npm/a@1.0.0')?.dependsOn).toEqual(['pkg:npm/b@2.0.0'])
  expect(dependencies.find(({ ref }) => ref === 'pkg:npm/ichido@1.0.0')?.dependsOn).toEqual([
    'pkg:npm/a@1.0.0',
    'pkg:npm/b@1.0.0',
  ])
})
