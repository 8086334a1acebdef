import type { BackfillShape, DefinitionShape, Page } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { messageOf } from '../parts/loaded.tsx'
import { Progress } from '../parts/progress.tsx'
import { Instant } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'

const w = words(
  {
    pauseTitle: (name: string) => `Pause ${name}`,
    resumeTitle: (name: string) => `Resume ${name}`,
    willPause: 'The ticks of the pause are recorded as skipped. Jobs that were already made continue.',
    willResume: 'The next tick makes a job again. Ticks of the pause stay skipped.',
    pause: 'Pause',
    resume: 'Resume',
    paused: (name: string) => `${name} is paused.`,
    resumed: (name: string) => `${name} continues.`,
    runTitle: (name: string) => `Run ${name} now`,
    willRun: (kind: string, user: string) =>
      `This makes one job of the kind ${kind} for ${user}, regardless of the rule and a pause.`,
    run: 'Run now',
    ran: 'The job was made.',
    backfillTitle: (name: string) => `Backfill ${name}`,
    willBackfill: 'Each past tick of the current rule makes one job, unless the ledger already has the tick.',
    from: 'From (your local time)',
    to: 'Before (empty: now)',
    count: 'Counting…',
    counted: (make: string, matched: string, before: string, skipped: string) =>
      `This would make ${make} jobs. The range has ${matched} ticks: ${before} already have a job, and ${skipped} were skipped and stay so.`,
    begin: (count: string) => `Make ${count} jobs`,
    begun: 'The backfill has begun.',
    backfills: 'Backfills',
    caption: 'Backfills, newest first',
    progress: 'Progress',
    range: 'Range',
    by: 'By',
    running: 'Running',
    done: 'Done',
    aborted: 'Aborted',
    made: (made: string, all: string) => `${made} of ${all}`,
    abort: 'Abort',
    abortTitle: 'Abort the backfill',
    willAbort: (made: string) => `${made} jobs were made and stay. The other ticks make no job.`,
    wasAborted: 'The backfill was aborted.',
  },
  {
    pauseTitle: (name) => `${name} を停止`,
    resumeTitle: (name) => `${name} を再開`,
    willPause: '停止中の予定は、スキップとして記録されます。すでに作られたジョブは続きます。',
    willResume: '次の予定から再びジョブが作られます。停止中の予定はスキップのままです。',
    pause: '停止',
    resume: '再開',
    paused: (name) => `${name} を停止しました。`,
    resumed: (name) => `${name} を再開しました。`,
    runTitle: (name) => `${name} を今すぐ実行`,
    willRun: (kind, user) => `規則や停止に関係なく、${user} の ${kind} ジョブを 1 件作ります。`,
    run: '今すぐ実行',
    ran: 'ジョブを作りました。',
    backfillTitle: (name) => `${name} の過去分を作成`,
    willBackfill: '今の規則による過去の予定ごとに、ジョブを 1 件作ります。記録済みの予定は除きます。',
    from: '開始(現地時刻)',
    to: '終了(空欄: 今)',
    count: '数えています…',
    counted: (make, matched, before, skipped) =>
      `${make} 件のジョブを作ります。範囲内の予定は ${matched} 件で、${before} 件は作成済み、${skipped} 件はスキップ済みです。`,
    begin: (count) => `${count} 件のジョブを作る`,
    begun: '過去分の作成を始めました。',
    backfills: '過去分の作成',
    caption: '過去分の作成(新しい順)',
    progress: '進み具合',
    range: '範囲',
    by: '実行者',
    running: '実行中',
    done: '完了',
    aborted: '中止',
    made: (made, all) => `${all} 件中 ${made} 件`,
    abort: '中止',
    abortTitle: '過去分の作成を中止',
    willAbort: (made) => `作成済みの ${made} 件は残ります。残りの予定のジョブは作られません。`,
    wasAborted: '過去分の作成を中止しました。',
  },
)

interface DefinitionDialogProps {
  definition: DefinitionShape
  onClose(): void
}

async function post(path: string, done: string, body?: unknown): Promise<void> {
  await send('POST', path, body)
  notify(done)
  void readAgain()
}

export function PauseDialog({ definition: { name, paused }, onClose }: DefinitionDialogProps) {
  const verb = paused ? 'resume' : 'pause'
  return (
    <ActionDialog
      title={paused ? w().resumeTitle(name) : w().pauseTitle(name)}
      action={w()[verb]}
      run={() => post(`/v1/definitions/${name}/${verb}`, paused ? w().resumed(name) : w().paused(name))}
      onClose={onClose}
    >
      <p>{paused ? w().willResume : w().willPause}</p>
    </ActionDialog>
  )
}

export function RunDialog({ definition: { name, kind, user_id }, onClose }: DefinitionDialogProps) {
  return (
    <ActionDialog
      title={w().runTitle(name)}
      action={w().run}
      run={() => post(`/v1/definitions/${name}/run`, w().ran)}
      onClose={onClose}
    >
      <p>{w().willRun(kind, user_id)}</p>
    </ActionDialog>
  )
}

interface Counted {
  matched: number
  made_before: number
  skipped: number
  would_make: number
}

/** Counts the jobs of the range before it can be begun. */
export function BackfillDialog({ definition: { name }, onClose }: DefinitionDialogProps) {
  const [range, setRange] = useState({ from: '', to: '' })
  // "Now" stays the same while the dialog is open, so that exactly the counted ticks are made.
  const [openedAt] = useState(() => new Date().toISOString())
  const path = `/v1/definitions/${name}/backfill`
  const asked = {
    from: range.from === '' ? '' : new Date(range.from).toISOString(),
    to: range.to === '' ? openedAt : new Date(range.to).toISOString(),
  }
  const { data, error, isPlaceholderData, isFetching } = useQuery({
    queryKey: ['dry-run', path, asked],
    queryFn: () => send<Counted>('POST', path, { ...asked, dry_run: true }),
    enabled: asked.from !== '',
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  })
  const counted = isPlaceholderData || error !== null ? undefined : data
  const make = counted?.would_make ?? 0
  return (
    <ActionDialog
      title={w().backfillTitle(name)}
      action={w().begin(counted === undefined ? '…' : formatNumber(make))}
      ready={make > 0}
      run={() => post(path, w().begun, asked)}
      onClose={onClose}
    >
      <p>{w().willBackfill}</p>
      {(['from', 'to'] as const).map((end) => (
        <label key={end} class="field">
          <span>{w()[end]}</span>
          <input
            type="datetime-local"
            value={range[end]}
            onInput={(event) => setRange({ ...range, [end]: event.currentTarget.value })}
          />
        </label>
      ))}
      {error !== null && (
        <p class="problem" role="alert">
          {messageOf(error)}
        </p>
      )}
      {counted === undefined && isFetching && <p role="status">{w().count}</p>}
      {counted !== undefined && (
        <p role="status">
          {w().counted(
            formatNumber(make),
            formatNumber(counted.matched),
            formatNumber(counted.made_before),
            formatNumber(counted.skipped),
          )}
        </p>
      )}
    </ActionDialog>
  )
}

/** The last backfills with their progress. */
export function Backfills({ name }: { name: string }) {
  const { data } = useRead<Page<BackfillShape>>(`/v1/definitions/${name}/backfills?limit=5`)
  const [aborting, abort] = useState<BackfillShape | null>(null)
  const mayOperate = useCan('operate')
  if (data === undefined || data.data.length === 0) return null
  return (
    <section class="card list" aria-label={w().backfills}>
      <table>
        <caption class="unseen">{w().caption}</caption>
        <thead>
          <tr>
            <th scope="col">{w().backfills}</th>
            <th scope="col">{w().progress}</th>
            <th scope="col" class="medium">
              {w().range}
            </th>
            <th scope="col" class="wide">
              {w().by}
            </th>
            <th scope="col">
              <span class="unseen">{w().abort}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {data.data.map((backfill) => (
            <tr key={backfill.backfill_id} data-id={backfill.backfill_id}>
              <td>{w()[backfill.state]}</td>
              <td>
                <Progress
                  done={backfill.made + backfill.made_before + backfill.skipped}
                  all={backfill.matched}
                  text={w().made(formatNumber(backfill.made), formatNumber(backfill.matched))}
                />
              </td>
              <td class="medium">
                <Instant of={backfill.from} /> – <Instant of={backfill.to} />
              </td>
              <td class="wide">{backfill.actor}</td>
              <td class="number">
                {backfill.state === 'running' && mayOperate && (
                  <button type="button" class="danger" onClick={() => abort(backfill)}>
                    {w().abort}
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {aborting !== null && (
        <ActionDialog
          title={w().abortTitle}
          action={w().abort}
          danger
          run={() => post(`/v1/definitions/${name}/backfills/${aborting.backfill_id}/abort`, w().wasAborted)}
          onClose={() => abort(null)}
        >
          <p>{w().willAbort(formatNumber(aborting.made))}</p>
        </ActionDialog>
      )}
    </section>
  )
}
