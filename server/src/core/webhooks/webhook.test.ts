import { describe, expect, test } from 'vitest'
import { deliveryId, hostOf, JOB_EVENTS, urlProblem, waitAfter, wantsJob } from './webhook.ts'

const HOUR_MS = 3_600_000

describe('waitAfter', () => {
  test('there are 11 tries over about three days', () => {
    const waits = Array.from({ length: 10 }, (_, i) => waitAfter(i + 1, 0.5) ?? Number.NaN)
    expect(waits).toEqual(waits.toSorted((a, b) => a - b))
    expect(waits[0]).toBe(5_000)
    const hours = waits.reduce((sum, ms) => sum + ms, 0) / HOUR_MS
    expect(hours).toBeGreaterThan(60)
    expect(hours).toBeLessThan(80)
    expect(waitAfter(11, 0.5)).toBe(null)
  })

  test('the jitter is a fifth', () => {
    expect([waitAfter(1, 0), waitAfter(1, 0.999_999)]).toEqual([4_000, 6_000])
  })
})

test.each([
  ['ftp://example.org/', 'must begin with https://'],
  ['example.org', 'must be an address'],
  ['https://', 'must be an address'],
  ['http://example.org/', 'without TLS'],
  ['https://ann:secret@example.org/', 'user name or password'],
  ['https://ann@example.org/', 'user name or password'],
  [`https://example.org/${'x'.repeat(2_000)}`, 'at most 2000 characters'],
])('%s is refused: %s', (url, why) => {
  expect(urlProblem(url, false)).toContain(why)
})

test('with the setting, http is allowed, and a password is not', () => {
  expect(urlProblem('http://10.0.0.1:8080/x', true)).toBe(null)
  expect(urlProblem('http://ann:secret@10.0.0.1/', true)).toContain('password')
})

test.each([
  ['https://[::1]:8443/x', '::1'],
  ['https://0x7f.1/', '127.0.0.1'],
  ['https://2130706433/', '127.0.0.1'],
  ['https://EXAMPLE.org./', 'example.org.'],
])('the host of %s is %s', (url, host) => {
  expect(hostOf(new URL(url))).toBe(host)
})

test('a webhook wants the jobs that match all of its filter', () => {
  const job = { queue: 'q', kind: 'k', labels: { team: 'a' } }
  const filter = { events: JOB_EVENTS, queue: null, kind: null, label: null }
  const wants = (change: object) => wantsJob({ ...filter, ...change }, 'job.succeeded', job)
  expect(wants({})).toBe(true)
  expect(wants({ queue: 'q', kind: 'k', label: { name: 'team', value: 'a' } })).toBe(true)
  expect(wants({ events: ['job.failed'] })).toBe(false)
  expect(wants({ queue: 'other' })).toBe(false)
  expect(wants({ kind: 'other' })).toBe(false)
  expect(wants({ label: { name: 'team', value: 'b' } })).toBe(false)
  expect(wants({ label: { name: 'toString', value: '' } })).toBe(false)
})

test('the id of a message follows from what it tells, and sorts by time', () => {
  const [webhook, job] = ['01a1e12b-0000-7000-8000-000000000001', '01a1e12b-0000-7000-8000-000000000002']
  const id = (n: number, atMs: number) => deliveryId(webhook, { id: job, n, atMs })
  expect(id(1, 1_700_000_000_000)).toBe(id(1, 1_700_000_000_000))
  expect(id(1, 1_700_000_000_000)).not.toBe(id(2, 1_700_000_000_000))
  expect(id(1, 1_700_000_000_000) < id(1, 1_700_000_000_001)).toBe(true)
  expect(id(1, 1_700_000_000_000)).toMatch(/^018bcfe5-6800-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
})
