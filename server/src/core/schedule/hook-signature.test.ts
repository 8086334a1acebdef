import { createHmac } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { type Headers, HOOK_TOLERANCE_MS, hookSecretProblem, verifyDelivery } from './hook-signature.ts'

describe('Standard Webhooks', () => {
  // The example of the specification.
  const SECRET = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
  const ID = 'msg_p5jXN8AQM9LWM0D4loKWxJek'
  const BODY = '{"test": 2432232314}'
  const SIGNATURE = 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
  const AT_SECONDS = 1_614_265_330
  const headers = { 'webhook-id': ID, 'webhook-timestamp': String(AT_SECONDS), 'webhook-signature': SIGNATURE }
  const verify = (sent: Headers, body = BODY, nowMs = AT_SECONDS * 1000) =>
    verifyDelivery('standard', SECRET, { headers: sent, body: Buffer.from(body), nowMs })
  const verified = { kind: 'verified', delivery: { deliveryId: ID, idHeader: 'webhook-id', event: null } }

  test('the example of the specification is verified', () => {
    expect(verify(headers)).toEqual(verified)
  })

  test('the svix- names of the headers are the same scheme', () => {
    const renamed = Object.fromEntries(
      Object.entries(headers).map(([name, value]) => [name.replace('webhook', 'svix'), value]),
    )
    expect(verify(renamed)).toEqual({ ...verified, delivery: { ...verified.delivery, idHeader: 'svix-id' } })
  })

  test('one right signature among several is enough', () => {
    const several = `v1a,xyz v1,${Buffer.alloc(32).toString('base64')} ${SIGNATURE}`
    expect(verify({ ...headers, 'webhook-signature': several })).toEqual(verified)
  })

  test.each<[string, Headers, string]>([
    ['another body', headers, '{"test": 2432232315}'],
    ['another id', { ...headers, 'webhook-id': 'msg_other' }, BODY],
    ['another timestamp', { ...headers, 'webhook-timestamp': String(AT_SECONDS + 1) }, BODY],
    ['another version of the scheme', { ...headers, 'webhook-signature': SIGNATURE.replace('v1,', 'v2,') }, BODY],
    ['a signature that was cut off', { ...headers, 'webhook-signature': SIGNATURE.slice(0, -6) }, BODY],
  ])('%s is refused', (_, sent, body) => {
    expect(verify(sent, body)).toMatchObject({ kind: 'refused', problem: expect.stringContaining('signature') })
  })

  test('five minutes off either way are accepted, and a second more is refused', () => {
    for (const [sign, words] of [
      [1, 'behind'],
      [-1, 'ahead of'],
    ] as const) {
      const nowMs = AT_SECONDS * 1000 + sign * HOOK_TOLERANCE_MS
      expect(verify(headers, BODY, nowMs)).toEqual(verified)
      const late = verify(headers, BODY, nowMs + sign * 1000)
      expect(late).toMatchObject({ kind: 'refused', problem: expect.stringContaining(`301 s ${words}`) })
    }
  })

  test.each(['webhook-id', 'webhook-timestamp', 'webhook-signature'])(
    'a delivery without %s names the header',
    (header) => {
      const { [header]: _, ...others } = headers as Headers
      expect(verify(others)).toEqual({ kind: 'malformed', header, problem: 'is missing' })
    },
  )

  test('a timestamp that is no number is malformed', () => {
    expect(verify({ ...headers, 'webhook-timestamp': 'now' })).toMatchObject({
      kind: 'malformed',
      header: 'webhook-timestamp',
    })
  })

  test.each([
    ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', true],
    ['MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', false],
    [`whsec_${Buffer.alloc(23).toString('base64')}`, false],
    [`whsec_${Buffer.alloc(64).toString('base64')}`, true],
    [`whsec_${Buffer.alloc(65).toString('base64')}`, false],
    ['whsec_not base64!', false],
  ])('%s as a secret: %s', (secret, good) => {
    expect(hookSecretProblem('standard', secret) === null).toBe(good)
  })
})

describe("GitHub's signature", () => {
  // The example of GitHub's documentation.
  const SECRET = "It's a Secret to Everybody"
  const SIGNATURE = 'sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17'
  const headers = { 'x-github-delivery': 'd1', 'x-github-event': 'push', 'x-hub-signature-256': SIGNATURE }
  const verify = (sent: Headers, body = 'Hello, World!') =>
    verifyDelivery('github', SECRET, { headers: sent, body: Buffer.from(body), nowMs: 0 })

  test('the example of the documentation is verified', () => {
    expect(verify(headers)).toEqual({
      kind: 'verified',
      delivery: { deliveryId: 'd1', idHeader: 'x-github-delivery', event: 'push' },
    })
  })

  test('another body, another secret and SHA-1 are refused', () => {
    const refused = { kind: 'refused', problem: expect.stringContaining('signature') }
    const sha1 = `sha1=${createHmac('sha1', SECRET).update('Hello, World!').digest('hex')}`
    expect(verify(headers, 'Hello, World?')).toMatchObject(refused)
    expect(verify({ ...headers, 'x-hub-signature-256': SIGNATURE.replace('7', '8') })).toMatchObject(refused)
    expect(verify({ ...headers, 'x-hub-signature-256': sha1 })).toMatchObject(refused)
  })

  test.each(['x-github-delivery', 'x-github-event', 'x-hub-signature-256'])(
    'a delivery without %s names the header',
    (header) => {
      const { [header]: _, ...others } = headers as Headers
      expect(verify(others)).toEqual({ kind: 'malformed', header, problem: 'is missing' })
    },
  )

  test.each([
    ['x'.repeat(16), true],
    ['x'.repeat(15), false],
    ['x'.repeat(257), false],
    [SECRET, true],
    ['a line\nbreak in it somewhere', false],
  ])('%s as a secret: %s', (secret, good) => {
    expect(hookSecretProblem('github', secret) === null).toBe(good)
  })
})
