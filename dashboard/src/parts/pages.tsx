import type { Page } from '@ichido/sdk/protocol'
import { useInfiniteQuery } from '@tanstack/preact-query'
import { read, withQuery } from '../server/call.ts'
import { ageOf, LIVE_MS, paused } from '../server/queries.ts'
import { words } from '../words.ts'

const w = words({ more: 'Show more', loading: 'Loading…' }, { more: 'さらに表示', loading: '読み込み中…' })

type Parameters = Record<string, string | number | boolean | null | undefined>
const PAGE_SIZE = 50
/** While so many pages are open, the list is live. Each of them is read again. */
const LIVE_PAGES_MAX = 4

/** A list of the API, page by page, up to its end. */
export function usePages<T>(
  path: string,
  parameters: Parameters = {},
  everyMs: number | false = LIVE_MS,
  enabled = true,
) {
  const base = withQuery(path, { limit: PAGE_SIZE, ...parameters })
  const query = useInfiniteQuery({
    queryKey: ['pages', base],
    queryFn: ({ pageParam, signal }) =>
      read<Page<T>>(
        pageParam === null ? base : `${base}&cursor=${encodeURIComponent(pageParam)}`,
        signal,
        ageOf(everyMs),
      ),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    refetchInterval: ({ state }) =>
      paused.value || (state.data?.pages.length ?? 0) > LIVE_PAGES_MAX ? false : everyMs,
    enabled,
  })
  const rows = query.data?.pages.flatMap(({ data }) => data)
  return { ...query, data: rows, pages: query }
}

interface MoreProps {
  of: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage(): Promise<unknown> }
}

export function More({ of: { hasNextPage, isFetchingNextPage, fetchNextPage } }: MoreProps) {
  if (!hasNextPage) return null
  return (
    <p class="note">
      <button type="button" class="quiet" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
        {isFetchingNextPage ? w().loading : w().more}
      </button>
    </p>
  )
}
