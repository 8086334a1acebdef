import type { Call } from '@ichido/sdk/client'
import { type Outbox, type OutboxChange, openOutbox } from '@ichido/sdk/outbox'
import { type Bookmark, parseBookmark, type Save } from './bookmark.ts'

/** The saves that the server does not have yet. They outlive the tab, and each has a key: sent twice, it is one bookmark. */
export async function openSaves(
  call: Call,
  changed: (change: OutboxChange<Save, Bookmark>) => void,
): Promise<Outbox<Save, Bookmark>> {
  const outbox = await openOutbox<Save, Bookmark>({
    name: 'bookmarks',
    send: async ({ key, body }, signal) => {
      const answer = await call('POST', '/v1/bookmarks', { body, headers: { 'idempotency-key': key }, signal })
      return parseBookmark(answer.body)
    },
  })
  outbox.onChange(changed)
  return outbox
}
