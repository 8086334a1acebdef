import type { AuditShape } from '@ichido/sdk/protocol'
import { Link } from 'wouter-preact'
import { FilterField, useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Instant } from '../parts/text.tsx'
import { withQuery } from '../server/call.ts'
import { CALM_MS } from '../server/queries.ts'
import { words } from '../words.ts'

const w = words(
  {
    title: 'Audit',
    caption: 'Changes by people and workers, newest first',
    actor: 'Actor',
    action: 'Action',
    subject: 'Subject',
    when: 'When',
    change: 'Change',
    none: 'Nothing was changed yet',
    unmatched: 'No entry matches',
    clear: 'Clear the filters',
  },
  {
    title: '監査',
    caption: '人とワーカーによる変更(新しい順)',
    actor: '実行者',
    action: '操作',
    subject: '対象',
    when: '日時',
    change: '変更',
    none: '変更はまだありません',
    unmatched: '条件に合う記録はありません',
    clear: '条件を消す',
  },
)

const NAMES = ['actor', 'action', 'subject'] as const

export default function Audit() {
  const { filters, change, clear, isEmpty } = useFilters(NAMES)
  const list = usePages<AuditShape>('/v1/audit', filters, CALM_MS)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <search class="filters">
        {NAMES.map((name) => (
          <FilterField
            key={name}
            label={w()[name]}
            value={filters[name]}
            search={name === 'actor'}
            onChange={(value) => change({ [name]: value })}
          />
        ))}
      </search>
      <div class="card list">
        <Loaded
          of={list as never}
          empty={{
            is: (data: AuditShape[]) => data.length === 0,
            show: isEmpty ? (
              <Empty title={w().none} />
            ) : (
              <Empty title={w().unmatched}>
                <button type="button" class="quiet" onClick={clear}>
                  {w().clear}
                </button>
              </Empty>
            ),
          }}
        >
          {(entries: AuditShape[]) => (
            <table>
              <caption class="unseen">{w().caption}</caption>
              <thead>
                <tr>
                  <th scope="col">{w().when}</th>
                  <th scope="col">{w().actor}</th>
                  <th scope="col">{w().action}</th>
                  <th scope="col" class="medium">
                    {w().subject}
                  </th>
                  <th scope="col" class="wide">
                    {w().change}
                  </th>
                </tr>
              </thead>
              <tbody>
                {entries.map((entry) => (
                  <tr key={entry.audit_id}>
                    <td>
                      <Instant of={entry.created_at} />
                    </td>
                    <td class="name" title={entry.actor}>
                      <Link href={withQuery('/audit', { actor: entry.actor })} data-row="">
                        {entry.actor}
                      </Link>
                    </td>
                    <td>{entry.action}</td>
                    <td class="medium name" title={entry.subject}>
                      {entry.subject}
                    </td>
                    <td class="wide difference">
                      <Difference before={entry.before} after={entry.after} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

/** Text without its quotes. Empty: the field was not set. */
const textOf = (value: unknown): string =>
  value === undefined || value === null ? '' : typeof value === 'string' ? value : JSON.stringify(value)

/** Only the fields that differ. A field that was not set has only its new value. */
function Difference({ before, after }: { before: unknown; after: unknown }) {
  const [old, new_] = [fieldsOf(before), fieldsOf(after)]
  const names = [...new Set([...Object.keys(old), ...Object.keys(new_)])]
  const changed = names.filter((name) => textOf(old[name]) !== textOf(new_[name]))
  return (
    <>
      {changed.map((name) => (
        <div key={name}>
          <span class="faint">{name}:</span> {textOf(old[name]) !== '' && <del>{textOf(old[name])}</del>}
          {textOf(old[name]) !== '' && textOf(new_[name]) !== '' && ' → '}
          {textOf(new_[name]) !== '' && <ins>{textOf(new_[name])}</ins>}
        </div>
      ))}
    </>
  )
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}
