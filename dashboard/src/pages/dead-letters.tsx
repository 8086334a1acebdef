import type { DeadLetterGroup, DeadLetterGroups, DeadLetterShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { FilterField, type Filters, RefusedFilter, TimeFilter, useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Sparkline } from '../parts/sparkline.tsx'
import { Age, shortId } from '../parts/text.tsx'
import { withQuery } from '../server/call.ts'
import { LIVE_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatInstant, formatNumber, words } from '../words.ts'
import { type Letters, RedriveDialog, Redrives } from './dead-letters-redrive.tsx'

const w = words(
  {
    title: 'Dead letters',
    queue: 'Queue',
    kind: 'Kind',
    user: 'User',
    errorCode: 'Error code',
    text: 'Text',
    textHint: "part of the error's message",
    after: 'Dead since',
    before: 'Dead before',
    more: 'More filters',
    clear: 'Clear the filters',
    redriveAll: 'Redrive all',
    redriveMatching: 'Redrive all that match',
    redriveSelected: (count: string) => `Redrive ${count} selected`,
    redrive: 'Redrive',
    redriveGroup: (code: string, kind: string) => `Redrive all ${code} of ${kind}`,
    redriveOne: (id: string) => `Redrive job ${id}`,
    groups: 'By error',
    groupsCaption: 'Groups of dead letters by error code, kind and queue, the largest first',
    list: 'Newest first',
    count: 'Count',
    sample: 'A message of the group',
    last: 'Last',
    when: (from: string) => `Since ${from}`,
    most: (most: string, from: string, last: string) => `At most ${most} in one step since ${from}, the last ${last}`,
    job: 'Job',
    error: 'Error',
    retries: 'Failed runs',
    age: 'Dead for',
    none: 'No dead letters',
    noneWhy: 'A job whose retries are used up is kept here until a person redrives it. All jobs are well.',
    unmatched: 'No dead letter matches',
    select: (id: string) => `Select job ${id}`,
    selectPage: 'Select the dead letters that are shown',
  },
  {
    title: 'デッドレター',
    queue: 'キュー',
    kind: '種別',
    user: 'ユーザー',
    errorCode: 'エラーコード',
    text: 'テキスト',
    textHint: 'エラーメッセージの一部',
    after: '発生日時(以降)',
    before: '発生日時(以前)',
    more: '他の条件',
    clear: '条件を消す',
    redriveAll: 'すべて再投入',
    redriveMatching: '条件に合うものをすべて再投入',
    redriveSelected: (count) => `選択した ${count} 件を再投入`,
    redrive: '再投入',
    redriveGroup: (code, kind) => `${kind} の ${code} をすべて再投入`,
    redriveOne: (id) => `ジョブ ${id} を再投入`,
    groups: 'エラー別',
    groupsCaption: 'エラーコード、種別、キューごとのデッドレター(多い順)',
    list: '新しい順',
    count: '件数',
    sample: 'メッセージの例',
    last: '最後',
    when: (from) => `${from} 以降`,
    most: (most, from, last) => `${from} 以降、1 区間で最大 ${most} 件、最後は ${last}`,
    job: 'ジョブ',
    error: 'エラー',
    retries: '失敗した実行',
    age: '経過',
    none: 'デッドレターはありません',
    noneWhy: '再試行を使い切ったジョブは、人が再投入するまでここに残ります。今は 1 件もありません。',
    unmatched: '条件に合うデッドレターはありません',
    select: (id) => `ジョブ ${id} を選択`,
    selectPage: '表示中のデッドレターを選択',
  },
)

const NAMES = ['queue', 'kind', 'error_code', 'user_id', 'text', 'dead_after', 'dead_before'] as const
type Name = (typeof NAMES)[number]

export default function DeadLetters() {
  const { filters, change, clear, isEmpty } = useFilters(NAMES)
  const groups = useRead<DeadLetterGroups>(withQuery('/v1/dead-letters/groups', filters))
  const [letters, choose] = useState<Letters | null>(null)
  const mayRedrive = useCan('submit')
  const any = (groups.data?.data.length ?? 0) > 0
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        {mayRedrive && any && (
          <button type="button" class="main" onClick={() => choose({ filter: filters })}>
            {isEmpty ? w().redriveAll : w().redriveMatching}
          </button>
        )}
      </div>
      <FilterRow filters={filters} change={change} clear={clear} isEmpty={isEmpty} />
      <RefusedFilter names={NAMES} error={groups.error} change={change} />
      <Redrives />
      <div class="card list">
        <Loaded
          of={groups}
          empty={{ is: ({ data }) => data.length === 0, show: isEmpty ? <NoLetters /> : <Unmatched clear={clear} /> }}
        >
          {(groups) => (
            <GroupTable
              groups={groups}
              filters={filters}
              redrive={mayRedrive ? (filter) => choose({ filter }) : null}
            />
          )}
        </Loaded>
      </div>
      {any && <LetterList filters={filters} redrive={mayRedrive ? choose : null} />}
      {letters !== null && <RedriveDialog letters={letters} onClose={() => choose(null)} />}
    </>
  )
}

function NoLetters() {
  return (
    <Empty title={w().none}>
      <p>{w().noneWhy}</p>
    </Empty>
  )
}

function Unmatched({ clear }: { clear(): void }) {
  return (
    <Empty title={w().unmatched}>
      <button type="button" class="quiet" onClick={clear}>
        {w().clear}
      </button>
    </Empty>
  )
}

interface FilterRowProps {
  filters: Filters<Name>
  change(changes: Filters<Name>): void
  clear(): void
  isEmpty: boolean
}

function FilterRow({ filters, change, clear, isEmpty }: FilterRowProps) {
  const seesUsers = useCan('readAll')
  const props = (name: Name, label: string) => ({
    label,
    value: filters[name],
    onChange: (value: string) => change({ [name]: value }),
  })
  const rare = (['user_id', 'dead_after', 'dead_before'] as const).some((name) => filters[name] !== undefined)
  return (
    <search class="filters">
      <FilterField {...props('text', w().text)} search placeholder={w().textHint} />
      <FilterField {...props('queue', w().queue)} />
      <FilterField {...props('kind', w().kind)} />
      <FilterField {...props('error_code', w().errorCode)} />
      <details open={rare}>
        <summary>{w().more}</summary>
        <div class="filters">
          {seesUsers && <FilterField {...props('user_id', w().user)} />}
          <TimeFilter {...props('dead_after', w().after)} />
          <TimeFilter {...props('dead_before', w().before)} />
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

interface GroupTableProps {
  groups: DeadLetterGroups
  filters: Filters<Name>
  /** Null: the visitor may not redrive. */
  redrive: ((filter: Filters<Name>) => void) | null
}

function GroupTable({ groups: { from, data }, filters, redrive }: GroupTableProps) {
  return (
    <table>
      <caption class="unseen">{w().groupsCaption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().errorCode}</th>
          <th scope="col" class="number">
            {w().count}
          </th>
          <th scope="col" class="medium">
            {w().kind}
          </th>
          <th scope="col" class="wide">
            {w().queue}
          </th>
          <th scope="col" class="medium">
            {w().sample}
          </th>
          <th scope="col" class="wide">
            {w().when(formatInstant(from))}
          </th>
          <th scope="col" class="number">
            {w().last}
          </th>
          {redrive !== null && (
            <th scope="col">
              <span class="unseen">{w().redrive}</span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {data.map((group) => {
          const { queue, kind, error_code } = group
          const filter = { ...filters, queue, kind, error_code }
          return (
            <tr key={`${queue} ${kind} ${error_code}`}>
              <td class="group">
                <Link href={withQuery('/dead-letters', filter)} data-row="">
                  {error_code}
                </Link>
                <small>{kind}</small>
                <small>{queue}</small>
              </td>
              <td class="number">{formatNumber(group.count)}</td>
              <td class="medium">{kind}</td>
              <td class="wide">{queue}</td>
              <td class="medium clip" title={group.sample_message}>
                {group.sample_message}
              </td>
              <td class="wide">
                <Sparkline values={group.counts} text={trendOf(group, from)} />
              </td>
              <td class="number">
                <Age of={group.last_dead_at} />
              </td>
              {redrive !== null && (
                <td class="number">
                  <button
                    type="button"
                    class="quiet"
                    aria-label={w().redriveGroup(error_code, kind)}
                    onClick={() => redrive(filter)}
                  >
                    {w().redrive}
                  </button>
                </td>
              )}
            </tr>
          )
        })}
      </tbody>
    </table>
  )
}

function trendOf({ counts, last_dead_at }: DeadLetterGroup, from: string): string {
  return w().most(formatNumber(Math.max(...counts)), formatInstant(from), formatInstant(last_dead_at))
}

interface LetterListProps {
  filters: Filters<Name>
  redrive: ((letters: Letters) => void) | null
}

function LetterList({ filters, redrive }: LetterListProps) {
  const list = usePages<DeadLetterShape>('/v1/dead-letters', filters, LIVE_MS)
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set())
  const rows = list.data ?? []
  // Letters that were redriven meanwhile are no longer shown, and no longer chosen.
  const selected = rows.map(({ job_id }) => job_id).filter((id) => chosen.has(id))
  const allShown = rows.length > 0 && selected.length === rows.length
  const toggle = (id: string) =>
    choose(new Set(chosen.has(id) ? selected.filter((one) => one !== id) : [...selected, id]))
  return (
    <section class="card list" aria-label={w().list}>
      <p class="line above">
        <b>{w().list}</b>
        {redrive !== null && selected.length > 0 && (
          <button type="button" class="main" onClick={() => redrive({ jobIds: selected })}>
            {w().redriveSelected(formatNumber(selected.length))}
          </button>
        )}
      </p>
      <table>
        <caption class="unseen">{w().list}</caption>
        <thead>
          <tr>
            {redrive !== null && (
              <th scope="col">
                <input
                  type="checkbox"
                  aria-label={w().selectPage}
                  checked={allShown}
                  onChange={() => choose(new Set(allShown ? [] : rows.map(({ job_id }) => job_id)))}
                />
              </th>
            )}
            <th scope="col">{w().job}</th>
            <th scope="col" class="medium">
              {w().kind}
            </th>
            <th scope="col" class="wide">
              {w().queue}
            </th>
            <th scope="col" class="wide">
              {w().user}
            </th>
            <th scope="col">{w().error}</th>
            <th scope="col" class="number wide">
              {w().retries}
            </th>
            <th scope="col" class="number">
              {w().age}
            </th>
            {redrive !== null && (
              <th scope="col" class="medium">
                <span class="unseen">{w().redrive}</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((letter) => {
            const { job_id, error_code, error_message } = letter
            return (
              <tr key={job_id} data-id={job_id} aria-selected={chosen.has(job_id)}>
                {redrive !== null && (
                  <td>
                    <input
                      type="checkbox"
                      aria-label={w().select(shortId(job_id))}
                      checked={chosen.has(job_id)}
                      onChange={() => toggle(job_id)}
                    />
                  </td>
                )}
                <td>
                  <Link href={`/jobs/${job_id}`} data-row="" title={job_id}>
                    <code>{shortId(job_id)}</code>
                  </Link>
                </td>
                <td class="medium">{letter.kind}</td>
                <td class="wide">{letter.queue}</td>
                <td class="wide">{letter.user_id}</td>
                <td class="clip error" title={error_message}>
                  {error_code}: {error_message}
                </td>
                <td class="number wide">{letter.retry_count}</td>
                <td class="number">
                  <Age of={letter.dead_at} />
                </td>
                {redrive !== null && (
                  <td class="number medium">
                    <button
                      type="button"
                      class="quiet"
                      aria-label={w().redriveOne(shortId(job_id))}
                      onClick={() => redrive({ jobIds: [job_id] })}
                    >
                      {w().redrive}
                    </button>
                  </td>
                )}
              </tr>
            )
          })}
        </tbody>
      </table>
      <More of={list.pages} />
    </section>
  )
}
