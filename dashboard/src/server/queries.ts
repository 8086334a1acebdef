import { NoAnswer } from '@ichido/sdk/client'
import { IchidoError } from '@ichido/sdk/protocol'
import { signal } from '@preact/signals'
import { QueryCache, QueryClient, useQuery } from '@tanstack/preact-query'
import { read, readFresh } from './call.ts'

/** How often a page that is looked at reads its data again. */
export const LIVE_MS = 2_000
/** How often counts are read again, which cost the server more than a list. */
export const COUNTS_MS = 5_000
/** How often data that rarely change are read again. */
export const CALM_MS = 10_000

/** True: live pages do not read again by themselves. */
export const paused = signal(false)

/** When the server last answered, and whether it answers now. */
export const connection = signal<{ online: boolean; lastAnswerMs: number | null }>({ online: true, lastAnswerMs: null })

export const queryClient: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    onSuccess: () => {
      connection.value = { online: true, lastAnswerMs: Date.now() }
    },
    onError: (error) => {
      if (isRefusal(error)) connection.value = { online: true, lastAnswerMs: Date.now() }
      else connection.value = { ...connection.value, online: false }
      if (error instanceof IchidoError && error.code === 'UNAUTHENTICATED') {
        void queryClient.invalidateQueries({ queryKey: ['session'] })
      }
    },
  }),
  defaultOptions: {
    queries: {
      // The page shows old data and the trouble at once, and tries again with the next interval.
      retry: (failures, error) => !isRefusal(error) && failures < 1,
      refetchOnWindowFocus: true,
      // The browser's own guess about the network says nothing about this server.
      networkMode: 'always',
      placeholderData: (before: unknown) => before,
    },
  },
})

/** The server answered, and refused: a repeat would be refused, too. */
function isRefusal(error: unknown): boolean {
  return error instanceof IchidoError && !(error instanceof NoAnswer) && error.code !== 'UNAVAILABLE'
}

/** An answer that is read again after this time may be half as old, so that dashboards can share it. */
export const ageOf = (everyMs: number | false): number => (everyMs === false ? 0 : everyMs / 2)

/** Reads a path of the API, and reads it again while the page is visible and not paused. */
export function useRead<T>(path: string, everyMs: number | false = LIVE_MS, enabled = true) {
  return useQuery<T>({
    queryKey: [path],
    queryFn: ({ signal }) => read<T>(path, signal, ageOf(everyMs)),
    refetchInterval: paused.value ? false : everyMs,
    enabled,
  })
}

/** After a change, everything on the page is read again. */
export function readAgain(): Promise<void> {
  readFresh()
  return queryClient.invalidateQueries()
}
