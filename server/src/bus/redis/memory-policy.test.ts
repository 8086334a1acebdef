import { expect, test } from 'vitest'
import { readMemoryPolicy } from './memory-policy.ts'

const info = (used: number, max: number, policy: string) =>
  `# Memory\r\nused_memory:${used}\r\nmaxmemory:${max}\r\nmaxmemory_policy:${policy}\r\n`

test.each([
  ['without a limit nothing is dropped, whatever the policy', info(9, 0, 'allkeys-lru'), false, false],
  ['keys are dropped', info(1, 9, 'allkeys-lru'), true, false],
  ['keys with an end are dropped', info(9, 9, 'volatile-ttl'), true, false],
  ['nothing is dropped, and there is room', info(8, 9, 'noeviction'), false, false],
  ['nothing is dropped, and there is no room', info(9, 9, 'noeviction'), false, true],
])('%s', (_, text, evicts, full) => {
  expect(readMemoryPolicy(text)).toMatchObject({ evicts, full })
})
