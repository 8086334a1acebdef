import type { QueueShape } from '@ichido/sdk/protocol'
import { DurationFilter, FilterField, type Filters, TimeFilter } from '../parts/filters.tsx'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { words } from '../words.ts'

const w = words(
  {
    queue: 'Queue',
    kind: 'Kind',
    user: 'User',
    label: 'Label',
    labelHint: 'name:value',
    key: 'Key',
    errorCode: 'Error code',
    text: 'Text',
    textHint: 'kind, label, error, payload',
    after: 'Made after',
    before: 'Made before',
    waiting: 'Waiting longer than',
    more: 'More filters',
    clear: 'Clear the filters',
  },
  {
    queue: 'キュー',
    kind: '種別',
    user: 'ユーザー',
    label: 'ラベル',
    labelHint: '名前:値',
    key: 'キー',
    errorCode: 'エラーコード',
    text: 'テキスト',
    textHint: '種別、ラベル、エラー、ペイロード',
    after: '作成日時(以降)',
    before: '作成日時(以前)',
    waiting: '待機時間が次より長い',
    more: '他の条件',
    clear: '条件を消す',
  },
)

/** The filters of jobs, as they are in the URL and in the API. */
export const NAMES = [
  'state',
  'queue',
  'kind',
  'user_id',
  'label',
  'key',
  'error_code',
  'text',
  'created_after',
  'created_before',
  'waiting_longer_than_seconds',
] as const
export type Name = (typeof NAMES)[number]

interface FilterRowProps {
  filters: Filters<Name>
  change(changes: Filters<Name>): void
  clear(): void
  isEmpty: boolean
}

export function FilterRow({ filters, change, clear, isEmpty }: FilterRowProps) {
  const seesQueues = useCan('readAll')
  const queues = useRead<{ data: QueueShape[] }>('/v1/queues?limit=100', CALM_MS, seesQueues).data?.data ?? []
  const field = (name: Name, label: string, more: object = {}) => (
    <FilterField label={label} value={filters[name]} onChange={(value) => change({ [name]: value })} {...more} />
  )
  const time = (name: 'created_after' | 'created_before', label: string) => (
    <TimeFilter label={label} value={filters[name]} onChange={(value) => change({ [name]: value })} />
  )
  const rare = (
    ['label', 'key', 'error_code', 'created_after', 'created_before', 'waiting_longer_than_seconds'] as const
  ).some((name) => filters[name] !== undefined)
  return (
    <search class="filters">
      {field('text', w().text, { search: true, placeholder: w().textHint })}
      {field('queue', w().queue, { options: queues.map(({ name }) => name) })}
      {field('kind', w().kind)}
      {seesQueues && field('user_id', w().user)}
      <details open={rare}>
        <summary>{w().more}</summary>
        <div class="filters">
          {field('label', w().label, { placeholder: w().labelHint })}
          {field('key', w().key)}
          {field('error_code', w().errorCode)}
          {time('created_after', w().after)}
          {time('created_before', w().before)}
          <DurationFilter
            label={w().waiting}
            value={filters.waiting_longer_than_seconds}
            onChange={(value) => change({ waiting_longer_than_seconds: value })}
          />
        </div>
      </details>
      {!isEmpty && (
        <button type="button" class="quiet" onClick={clear}>
          {w().clear}
        </button>
      )}
    </search>
  )
}
