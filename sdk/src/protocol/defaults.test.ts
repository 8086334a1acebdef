import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import {
  DEFAULT_BACKOFF,
  DEFAULT_CONTINUATION_SECONDS,
  DEFAULT_KEY_TTL_HOURS,
  DEFAULT_LEASE_TTL_SECONDS,
  DEFAULT_LIST_LIMIT,
  DEFAULT_MAX_ATTEMPTS,
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  DEFAULT_RESERVATION_TTL_SECONDS,
  DEFAULT_UPLOAD_TTL_SECONDS,
} from './defaults.ts'

/** The comments that editors show name the defaults. A comment cannot contain a constant, so they are compared. */
test.each<[string, Record<string, number | string>]>([
  [
    '../client/kind.ts',
    {
      ...DEFAULT_BACKOFF,
      queue: DEFAULT_QUEUE,
      priority: DEFAULT_PRIORITY,
      maxAttempts: DEFAULT_MAX_ATTEMPTS,
      leaseTtlSeconds: DEFAULT_LEASE_TTL_SECONDS,
      continuationSeconds: DEFAULT_CONTINUATION_SECONDS,
    },
  ],
  ['../client/client.ts', { keyTtlHours: DEFAULT_KEY_TTL_HOURS, uploadTtlSeconds: DEFAULT_UPLOAD_TTL_SECONDS }],
  ['../client/transport.ts', { limit: DEFAULT_LIST_LIMIT }],
  ['./jobs.ts', { limit: DEFAULT_LIST_LIMIT }],
])('the comments of %s name the defaults', (path, defaults) => {
  const text = textOf(path)
  const told = Object.keys(defaults).map((option) => {
    const comment = new RegExp(`default \`?([^\`\n]+?)\`?\\. \\*/\n +${option}\\?:`).exec(text)
    return [option, comment?.[1]]
  })
  expect(Object.fromEntries(told)).toEqual(
    Object.fromEntries(Object.entries(defaults).map(([option, value]) => [option, String(value)])),
  )
})

test('the comment of reserve names the default', () => {
  expect(textOf('../client/client.ts')).toContain(`for ${DEFAULT_RESERVATION_TTL_SECONDS} s by default`)
})

function textOf(path: string): string {
  return readFileSync(new URL(path, import.meta.url), 'utf8')
}
