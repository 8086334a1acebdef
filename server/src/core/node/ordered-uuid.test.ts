import { randomFillSync } from 'node:crypto'
import { validate, version } from 'uuid'
import { expect, test } from 'vitest'
import { idAt } from '../../store/jobs/job-filter.sql.ts'
import { orderedUuids } from './ordered-uuid.ts'

const random = (bytes: Uint8Array) => void randomFillSync(bytes)

test('ids are UUIDv7 of the time, and a hundred thousand of them differ', () => {
  const nowMs = Date.UTC(2026, 10, 18, 1, 2, 3, 456)
  const uuid = orderedUuids(() => nowMs, random)
  const ids = Array.from({ length: 100_000 }, uuid)
  expect(ids.every((id) => validate(id) && version(id) === 7)).toBe(true)
  expect(new Set(ids).size).toBe(ids.length)
  expect(ids.every((id) => id > idAt(nowMs) && id < idAt(nowMs + 1))).toBe(true)
})

test('ids rise within a millisecond, over time, and while the clock goes back', () => {
  let nowMs = Date.now()
  const uuid = orderedUuids(() => nowMs, random)
  const ids = Array.from({ length: 50_000 }, (_, i) => {
    nowMs += i % 1_000 === 0 ? (i % 3_000 === 0 ? -60_000 : 7) : 0
    return uuid()
  })
  expect(ids).toEqual(ids.toSorted())
})

test.each([0x00, 0xff])('random bytes that are all %i still give different ids', (byte) => {
  const uuid = orderedUuids(
    () => 1,
    (bytes) => void bytes.fill(byte),
  )
  const ids = Array.from({ length: 1_000 }, uuid)
  expect(new Set(ids).size).toBe(ids.length)
  expect(ids.every((id) => validate(id))).toBe(true)
})
