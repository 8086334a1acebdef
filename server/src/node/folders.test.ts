import { X509Certificate } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { silentMeter } from '../services/system/meter.ts'
import { selfSigned } from '../testing/http/certificate.ts'
import { disksOf } from './folders.ts'
import { type AlertChange, startNode } from './start-node.ts'
import { realWorld } from './world.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-disk-test-'))
afterAll(() => rmSync(folder, { recursive: true }))

test('a node checks the disks of its folders, each once', async () => {
  const folders = async (...args: Parameters<typeof disksOf>) => (await disksOf(...args)()).map((disk) => disk.folder)
  const dataDir = folder
  expect(await folders({ storage: { dataDir } })).toEqual([folder])
  expect(await folders({ storage: { dataDir }, artifacts: { folder: join(dataDir, 'artifacts') } })).toEqual([folder])
  expect(await folders({ storage: { dataDir }, artifacts: { folder: tmpdir() } })).toEqual([folder, tmpdir()])
  expect(await folders({ storage: {} })).toEqual([])
  expect(await folders({ storage: {}, artifacts: { folder } })).toEqual([folder])
  const [disk] = await disksOf({ storage: { dataDir } })()
  expect(disk?.freeRatio).toBeGreaterThanOrEqual(0)
  expect(disk?.freeRatio).toBeLessThanOrEqual(1)
  await expect(disksOf({ storage: { dataDir: join(folder, 'none') } })()).rejects.toThrow('ENOENT')
})

test('a leader reports that its certificate ends soon', async () => {
  const { cert } = selfSigned()
  const alert = Promise.withResolvers<AlertChange>()
  const node = await startNode({
    storage: { dataDir: join(folder, 'node') },
    world: realWorld,
    meter: silentMeter,
    allowNoFsync: false,
    certificate: cert,
    // The disk of this machine may be full.
    onAlert: (change) => change.rule === 'credential_ending' && alert.resolve(change),
    onTrouble: (_, error) => alert.reject(error),
  })
  const told = await alert.promise
  await node.close()
  const end = new X509Certificate(cert).validToDate.toISOString()
  expect(told).toMatchObject({ open: true, rule: 'credential_ending', subject: 'certificate' })
  expect(told.message).toBe(`The certificate of TLS_CERT_FILE ends at ${end}. Replace the file, and restart the node`)
})
