import { JOB_ORDERS, JOB_STATES, type JobCountsShape, type JobShape, type JobState } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { type Filters, RefusedFilter, useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { ACTIVE, Age, Command, commandLine, errorText, Pill, Span, shortId, stateWord } from '../parts/text.tsx'
import { withQuery } from '../server/call.ts'
import { useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { type BulkAction, BulkDialog, type Choice, Operations } from './jobs-bulk.tsx'
import { FilterRow, NAMES, type Name } from './jobs-filters.tsx'

const w = words(
  {
    title: 'Jobs',
    all: 'All',
    states: 'Filter by state',
    queue: 'Queue',
    kind: 'Kind',
    user: 'User',
    order: 'Order',
    newest: 'Newest first',
    oldest: 'Oldest first',
    clear: 'Clear the filters',
    job: 'Job',
    state: 'State',
    attempt: 'Attempt',
    age: 'Age',
    duration: 'Duration',
    error: 'Error',
    caption: 'Jobs, by age',
    none: 'No jobs yet',
    noneHow: 'Submit one and watch it run:',
    unmatched: 'No job matches',
    select: (id: string) => `Select job ${id}`,
    selectPage: 'Select the jobs that are shown',
    selected: (count: string) => `${count} selected`,
    matching: (count: string) => `All ${count} that match`,
    cancel: 'Cancel',
    retry: 'Retry',
    redrive: 'Redrive',
  },
  {
    title: 'ジョブ',
    all: 'すべて',
    states: '状態で絞り込む',
    queue: 'キュー',
    kind: '種別',
    user: 'ユーザー',
    order: '並び順',
    newest: '新しい順',
    oldest: '古い順',
    clear: '条件を消す',
    job: 'ジョブ',
    state: '状態',
    attempt: '試行',
    age: '経過',
    duration: '所要時間',
    error: 'エラー',
    caption: 'ジョブ(作成順)',
    none: 'ジョブはまだありません',
    noneHow: '1 件投入して動きを見てみましょう。',
    unmatched: '条件に合うジョブはありません',
    select: (id) => `ジョブ ${id} を選択`,
    selectPage: '表示中のジョブを選択',
    selected: (count) => `${count} 件選択中`,
    matching: (count) => `条件に合う ${count} 件すべて`,
    cancel: '取り消す',
    retry: '再試行',
    redrive: '再投入',
  },
)

export default function Jobs() {
  const { filters: given, change, clear } = useFilters([...NAMES, 'order'])
  const { order, ...filters } = given
  const isEmpty = Object.keys(filters).length === 0
  const list = usePages<JobShape>('/v1/jobs', given)
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set())
  const [bulk, setBulk] = useState<BulkAction | null>(null)
  /** The filter whose jobs were all chosen. With another filter, the choice would mean other jobs. */
  const [allOf, setAllOf] = useState<string | null>(null)
  const mayChange = useCan('submit')
  const filterText = JSON.stringify(filters)
  const all = !isEmpty && allOf === filterText
  const rows = list.data ?? []
  const choice: Choice = all ? { filter: toJson(filters) } : { jobIds: [...chosen] }
  const select = (ids: ReadonlySet<string>) => {
    setAllOf(null)
    choose(ids)
  }
  const toggle = (id: string) =>
    select(chosen.has(id) ? new Set([...chosen].filter((other) => other !== id)) : new Set([...chosen, id]))
  const finished = () => {
    setBulk(null)
    select(new Set())
  }
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        <label class="line">
          {w().order}
          <select value={order ?? 'newest'} onChange={(event) => change({ order: event.currentTarget.value })}>
            {JOB_ORDERS.map((name) => (
              <option key={name} value={name}>
                {w()[name]}
              </option>
            ))}
          </select>
        </label>
      </div>
      <StateChips filters={filters} change={change} />
      <FilterRow filters={filters} change={change} clear={clear} isEmpty={isEmpty} />
      <RefusedFilter names={NAMES} error={list.error} change={change} />
      {mayChange && (chosen.size > 0 || !isEmpty) && (
        <div class="line" role="toolbar" aria-label={w().title}>
          <span>{all ? '' : chosen.size > 0 && w().selected(formatNumber(chosen.size))}</span>
          {!isEmpty && (
            <label class="line">
              <input
                type="checkbox"
                checked={all}
                onChange={(event) => setAllOf(event.currentTarget.checked ? filterText : null)}
              />
              <MatchCount filters={filters} />
            </label>
          )}
          <button type="button" class="danger" disabled={!all && chosen.size === 0} onClick={() => setBulk('cancel')}>
            {w().cancel}
          </button>
          <button type="button" class="quiet" disabled={!all && chosen.size === 0} onClick={() => setBulk('retry')}>
            {w().retry}
          </button>
          {!all && chosen.size > 0 && (
            <button type="button" class="quiet" onClick={() => setBulk('redrive')}>
              {w().redrive}
            </button>
          )}
        </div>
      )}
      {bulk !== null && <BulkDialog action={bulk} choice={choice} onDone={finished} onClose={() => setBulk(null)} />}
      {mayChange && <Operations />}
      <div class="card list">
        <Loaded
          of={list as never}
          empty={{
            is: (data: JobShape[]) => data.length === 0,
            show: isEmpty ? <FirstJob /> : <Unmatched clear={clear} />,
          }}
        >
          {() => <JobTable rows={rows} chosen={mayChange ? chosen : null} toggle={toggle} choose={select} />}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

function FirstJob() {
  return (
    <Empty title={w().none}>
      <p>{w().noneHow}</p>
      <Command text={commandLine('demo')} />
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

interface JobTableProps {
  rows: readonly JobShape[]
  /** Null: the visitor may not change jobs, so nothing can be selected. */
  chosen: ReadonlySet<string> | null
  toggle(id: string): void
  choose(ids: ReadonlySet<string>): void
}

function JobTable({ rows, chosen, toggle, choose }: JobTableProps) {
  const allShown = chosen !== null && rows.length > 0 && rows.every(({ job_id }) => chosen.has(job_id))
  const failed = rows.some((job) => errorText(job) !== '')
  return (
    <table class="jobs">
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          {chosen !== null && (
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
          <th scope="col">{w().state}</th>
          <th scope="col" class="medium">
            {w().kind}
          </th>
          <th scope="col" class="wide">
            {w().queue}
          </th>
          <th scope="col" class="wide">
            {w().user}
          </th>
          <th scope="col" class="number wide">
            {w().attempt}
          </th>
          <th scope="col" class="number medium">
            {w().age}
          </th>
          <th scope="col" class="number medium">
            {w().duration}
          </th>
          {failed && (
            <th scope="col" class="medium">
              {w().error}
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {rows.map((job) => (
          <tr key={job.job_id} data-id={job.job_id} aria-selected={chosen?.has(job.job_id) ?? undefined}>
            {chosen !== null && (
              <td>
                <input
                  type="checkbox"
                  aria-label={w().select(shortId(job.job_id))}
                  checked={chosen.has(job.job_id)}
                  onChange={() => toggle(job.job_id)}
                />
              </td>
            )}
            <td>
              <Link href={`/jobs/${job.job_id}`} data-row="" title={job.job_id}>
                <code>{shortId(job.job_id)}</code>
              </Link>
              <small>
                {job.kind} · {job.queue} · <Age of={job.created_at} />
              </small>
            </td>
            <td>
              <Pill of={job} />
            </td>
            <td class="medium name" title={job.kind}>
              {job.kind}
            </td>
            <td class="wide">{job.queue}</td>
            <td class="wide">{job.user_id}</td>
            <td class="number wide">{job.attempt}</td>
            <td class="number medium">
              <Age of={job.created_at} />
            </td>
            <td class="number medium">
              <Span from={job.started_at} to={ACTIVE.includes(job.state) ? null : job.finished_at} />
            </td>
            {failed && (
              <td class="medium clip error" title={errorText(job)}>
                {errorText(job)}
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  )
}

/** The counts of the jobs that match a filter, in every state. */
function useCounts({ state: _, ...filters }: Filters<Name>) {
  return useRead<JobCountsShape>(withQuery('/v1/jobs/counts', filters)).data
}

const shown = (count: number, capped: boolean): string => `${formatNumber(count)}${capped ? '+' : ''}`

function StateChips({ filters, change }: { filters: Filters<Name>; change(changes: Filters<Name>): void }) {
  const found = useCounts(filters)
  return (
    <fieldset class="states">
      <legend class="unseen">{w().states}</legend>
      <Chip pressed={filters.state === undefined} onClick={() => change({ state: '' })}>
        <b>{found === undefined ? '–' : shown(found.total, found.capped)}</b>
        <span>{w().all}</span>
      </Chip>
      {JOB_STATES.map((state) => (
        <Chip
          key={state}
          state={state}
          pressed={filters.state === state}
          onClick={() => change({ state: filters.state === state ? '' : state })}
        >
          <b>{countOf(found, state)}</b>
          <span>{stateWord(state)}</span>
        </Chip>
      ))}
    </fieldset>
  )
}

function countOf(found: JobCountsShape | undefined, state: JobState): string {
  if (found === undefined) return '–'
  const { count, capped } = found.by_state[state] ?? { count: 0, capped: false }
  return shown(count, capped)
}

interface ChipProps {
  state?: JobState
  pressed: boolean
  onClick(): void
  children: preact.ComponentChildren
}

function Chip({ state, pressed, onClick, children }: ChipProps) {
  return (
    <button type="button" class="chip" data-state={state} aria-pressed={pressed} onClick={onClick}>
      {children}
    </button>
  )
}

function MatchCount({ filters }: { filters: Filters<Name> }) {
  const found = useRead<JobCountsShape>(withQuery('/v1/jobs/counts', filters)).data
  return <>{w().matching(found === undefined ? '…' : shown(found.total, found.capped))}</>
}

/** The filter as an operation takes it. */
function toJson({ waiting_longer_than_seconds: seconds, ...filters }: Filters<Name>): object {
  return seconds === undefined ? filters : { ...filters, waiting_longer_than_seconds: Number(seconds) }
}
