import { expect, test } from 'vitest'
import manifest from '../../../package.json' with { type: 'json' }
import { nodeTooOld } from './node.ts'

test.each(['22.13.0', '22.20.1', '24.0.0', '100.1.0'])('Node %s is supported', (version) => {
  expect(nodeTooOld(version)).toBeNull()
})

test.each(['18.20.0', '20.20.2', '22.12.9'])('Node %s is refused as too old', (version) => {
  expect(nodeTooOld(version)).toBe(`Ichido needs Node 22.13 or newer; this is ${version}`)
})

test('the package requires the same version', () => {
  expect(manifest.engines.node).toBe('>=22.13')
})
