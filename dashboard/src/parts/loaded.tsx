import type { UseQueryResult } from '@tanstack/preact-query'
import type { ComponentChildren } from 'preact'
import { words } from '../words.ts'

const w = words(
  { loading: 'Loading', again: 'Try again', unreachable: 'The server does not answer.' },
  { loading: '読み込み中', again: '再試行', unreachable: 'サーバーが応答しません。' },
)

export function messageOf(error: unknown): string {
  if (error instanceof DOMException && error.name === 'TimeoutError') return w().unreachable
  return error instanceof Error ? error.message : String(error)
}

interface LoadedProps<T> {
  of: UseQueryResult<T>
  /** Shown in place of the data if there is nothing. */
  empty?: { is(data: T): boolean; show: ComponentChildren }
  children(data: T): ComponentChildren
}

/** Shows data as they are known: a placeholder while they load, the trouble, nothing, or the data. */
export function Loaded<T>({ of: { data, error, refetch }, empty, children }: LoadedProps<T>) {
  if (data === undefined && error === null) {
    return (
      <div class="skeleton" role="status" aria-label={w().loading}>
        <span />
        <span />
        <span />
      </div>
    )
  }
  return (
    <>
      {error !== null && (
        <p class="trouble" role="alert">
          {messageOf(error)}
          <button type="button" class="quiet" onClick={() => void refetch()}>
            {w().again}
          </button>
        </p>
      )}
      {data !== undefined && (empty?.is(data) ? empty.show : children(data))}
    </>
  )
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h3>{title}</h3>
      {children}
    </div>
  )
}
