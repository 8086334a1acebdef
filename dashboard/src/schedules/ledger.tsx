import type { OccurrenceOutcome, OccurrenceShape } from '@ichido/sdk/protocol'
import { Link } from 'wouter-preact'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { formatDuration, Instant, Pill, shortId, stateWord } from '../parts/text.tsx'
import { formatInstant, words } from '../words.ts'

const w = words(
  {
    title: 'Ledger',
    strip: 'Ticks, oldest first',
    caption: 'The ledger of ticks, newest first',
    tick: 'Tick',
    outcome: 'Outcome',
    job: 'Job made',
    skipped: 'Skipped',
    waiting_quota: 'Waits for the quota',
    waiting_overlap: 'Waits for the last job',
    pending: 'Due',
    missing: 'Missing',
    late: 'Late',
    why: 'Reason',
    open: 'Job',
    until: (instant: string) => `all ticks until ${instant}`,
    backfill: 'backfill',
    none: 'No ticks yet',
    noneWhy: 'Each tick of the rule gets one entry here: its job, or the reason why it made none.',
  },
  {
    title: '記録',
    strip: '予定(古い順)',
    caption: '予定の記録(新しい順)',
    tick: '予定',
    outcome: '結果',
    job: 'ジョブ作成',
    skipped: 'スキップ',
    waiting_quota: '上限の空き待ち',
    waiting_overlap: '前のジョブ待ち',
    pending: '予定時刻',
    missing: '欠落',
    late: '遅れ',
    why: '理由',
    open: 'ジョブ',
    until: (instant) => `${instant} までの全予定`,
    backfill: '過去分',
    none: '予定の記録はまだありません',
    noneWhy: '規則の予定ごとに、作られたジョブか、作られなかった理由が記録されます。',
  },
)

/** The state of a job whose colour an outcome has. */
const COLOURS: Record<OccurrenceOutcome, string> = {
  job: 'SUCCEEDED',
  skipped: 'CANCELED',
  waiting_quota: 'ORPHANED',
  waiting_overlap: 'ORPHANED',
  pending: 'PENDING',
  missing: 'FAILED',
}

/** What became of a tick: the state of its job, or the reason why it has none. */
export function Outcome({ of: { outcome, job_state } }: { of: OccurrenceShape }) {
  if (job_state !== null) return <Pill of={{ state: job_state }} />
  return (
    <span class="pill" data-state={COLOURS[outcome]}>
      {w()[outcome]}
    </span>
  )
}

/** Expected against actual ticks: a strip of cells, and the table behind it. */
export function Ledger({ name }: { name: string }) {
  const list = usePages<OccurrenceShape>(`/v1/definitions/${name}/occurrences`)
  return (
    <section class="card list" aria-label={w().title}>
      <Loaded
        of={list as never}
        empty={{
          is: (rows: OccurrenceShape[]) => rows.length === 0,
          show: (
            <Empty title={w().none}>
              <p>{w().noneWhy}</p>
            </Empty>
          ),
        }}
      >
        {(rows: OccurrenceShape[]) => (
          <>
            <Strip rows={rows} />
            <LedgerTable rows={rows} />
          </>
        )}
      </Loaded>
      <More of={list.pages} />
    </section>
  )
}

export function Strip({ rows, short = false }: { rows: readonly OccurrenceShape[]; short?: boolean }) {
  return (
    <ol class={short ? 'ticks short' : 'ticks'} aria-label={w().strip}>
      {[...rows].reverse().map(({ scheduled_for, outcome, job_state }) => {
        const became = job_state === null ? w()[outcome] : stateWord(job_state)
        const text = `${formatInstant(scheduled_for)}: ${became}`
        return (
          <li key={scheduled_for} data-state={job_state ?? COLOURS[outcome]} title={text}>
            <span class="unseen">{text}</span>
          </li>
        )
      })}
    </ol>
  )
}

function LedgerTable({ rows }: { rows: readonly OccurrenceShape[] }) {
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().tick}</th>
          <th scope="col">{w().outcome}</th>
          <th scope="col" class="medium">
            {w().why}
          </th>
          <th scope="col" class="number medium">
            {w().late}
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.scheduled_for} data-id={row.scheduled_for}>
            <td>
              <Instant of={row.scheduled_for} />
            </td>
            <td>
              <Outcome of={row} />{' '}
              {row.job_id !== null && (
                <Link href={`/jobs/${row.job_id}`} data-row="" title={row.job_id}>
                  <code>{shortId(row.job_id)}</code>
                </Link>
              )}
            </td>
            <td class="medium">{reasonOf(row)}</td>
            <td class="number medium">
              {row.late_seconds === null ? '–' : formatDuration(row.late_seconds * 1_000, 1)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function reasonOf({ reason, skipped_until, origin }: OccurrenceShape): string {
  const parts = [
    reason,
    skipped_until === null ? null : w().until(formatInstant(skipped_until)),
    origin === 'backfill' ? w().backfill : null,
  ]
  return parts.filter((part) => part !== null).join(', ')
}
