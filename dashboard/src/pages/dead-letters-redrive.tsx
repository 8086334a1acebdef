import type { DeadLetterFilter, Page, RedriveShape } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { messageOf } from '../parts/loaded.tsx'
import { Progress } from '../parts/progress.tsx'
import { Age } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain, useRead } from '../server/queries.ts'
import { useMayChange } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'

const w = words(
  {
    title: (count: string) => `Redrive ${count} dead letters`,
    titleOne: 'Redrive 1 dead letter',
    counting: 'Counting…',
    none: 'No dead letter matches any more.',
    text: 'Each job gets another run and a full retry budget. Jobs that find the quota full wait and are tried again. Later dead letters are not part of it.',
    chosen: 'selected jobs',
    all: 'all dead letters',
    pace: 'Jobs per second',
    paceHint: 'Empty: as fast as possible',
    begun: 'The redrive has begun.',
    redrives: 'Redrives',
    caption: 'Redrives, newest first',
    of: 'Dead letters',
    by: 'By',
    began: 'Began',
    progress: 'Progress',
    running: 'Running',
    done: 'Done',
    aborted: 'Aborted',
    counts: (redriven: string, matched: string) => `${redriven} of ${matched}`,
    waiting: (count: string) => `${count} wait for the quota`,
    skipped: (count: string) => `${count} skipped`,
    perSecond: (count: string) => `at most ${count} per second`,
    abort: 'Abort',
    abortTitle: 'Abort the redrive',
    abortText: (redriven: string, left: string) =>
      `${redriven} jobs were redriven and stay so. The other ${left} stay dead letters.`,
    wasAborted: 'The redrive was aborted.',
  },
  {
    title: (count) => `${count} 件のデッドレターを再投入`,
    titleOne: '1 件のデッドレターを再投入',
    counting: '数えています…',
    none: '条件に合うデッドレターはもうありません。',
    text: '各ジョブがもう一度実行され、再試行回数は最初からになります。上限に達しているジョブは空きを待ちます。この後に増えたデッドレターは含みません。',
    chosen: '選択したジョブ',
    all: 'すべてのデッドレター',
    pace: '1 秒あたりの件数',
    paceHint: '空欄: 最速',
    begun: '再投入を始めました。',
    redrives: '再投入',
    caption: '再投入(新しい順)',
    of: '対象',
    by: '実行者',
    began: '開始',
    progress: '進み具合',
    running: '実行中',
    done: '完了',
    aborted: '中止',
    counts: (redriven, matched) => `${matched} 件中 ${redriven} 件`,
    waiting: (count) => `${count} 件が空きを待機`,
    skipped: (count) => `${count} 件は対象外`,
    perSecond: (count) => `毎秒 ${count} 件まで`,
    abort: '中止',
    abortTitle: '再投入を中止',
    abortText: (redriven, left) =>
      `再投入した ${redriven} 件はそのままです。残りの ${left} 件はデッドレターのまま残ります。`,
    wasAborted: '再投入を中止しました。',
  },
)

/** The dead letters to redrive: those of these jobs, or all that match. */
export type Letters = { jobIds: readonly string[] } | { filter: DeadLetterFilter }

/** Counts the dead letters, asks for the pace, and begins. */
export function RedriveDialog({ letters, onClose }: { letters: Letters; onClose(): void }) {
  const [pace, setPace] = useState('')
  const request = 'jobIds' in letters ? { job_ids: letters.jobIds } : { filter: letters.filter }
  const { data, error } = useQuery({
    queryKey: ['dry-run', request],
    queryFn: () => send<{ matched: number }>('POST', '/v1/dead-letters/redrive', { ...request, dry_run: true }),
    staleTime: 0,
    gcTime: 0,
  })
  const matched = data?.matched ?? 0
  const begin = async () => {
    const given = pace === '' ? {} : { per_second: Number(pace) }
    await send('POST', '/v1/dead-letters/redrive', { ...request, ...given })
    notify(w().begun)
    void readAgain()
  }
  const title = matched === 1 ? w().titleOne : w().title(data === undefined ? '…' : formatNumber(matched))
  return (
    <ActionDialog title={title} action={title} ready={matched > 0} run={begin} onClose={onClose}>
      {'filter' in letters && <p class="faint">{filterText(letters.filter)}</p>}
      {data === undefined && error === null && <p role="status">{w().counting}</p>}
      {error !== null && (
        <p class="problem" role="alert">
          {messageOf(error)}
        </p>
      )}
      {data !== undefined && <p>{matched === 0 ? w().none : w().text}</p>}
      <label class="field">
        <span>{w().pace}</span>
        <input
          type="number"
          min={1}
          step={1}
          value={pace}
          placeholder={w().paceHint}
          onInput={(event) => setPace(event.currentTarget.value)}
        />
      </label>
    </ActionDialog>
  )
}

function filterText(filter: DeadLetterFilter | null): string {
  if (filter === null) return w().chosen
  const given = Object.entries(filter).map(([name, value]) => `${name}: ${value}`)
  return given.length === 0 ? w().all : given.join(', ')
}

/** The last redrives with their progress. */
export function Redrives() {
  const { data } = useRead<Page<RedriveShape>>('/v1/dead-letters/redrives?limit=5')
  const [aborting, abort] = useState<RedriveShape | null>(null)
  if (data === undefined || data.data.length === 0) return null
  return (
    <section class="card list" aria-label={w().redrives}>
      <table>
        <caption class="unseen">{w().caption}</caption>
        <thead>
          <tr>
            <th scope="col">{w().redrives}</th>
            <th scope="col">{w().progress}</th>
            <th scope="col" class="wide">
              {w().of}
            </th>
            <th scope="col" class="wide">
              {w().by}
            </th>
            <th scope="col" class="number medium">
              {w().began}
            </th>
            <th scope="col">
              <span class="unseen">{w().abort}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {data.data.map((redrive) => (
            <RedriveRow key={redrive.redrive_id} redrive={redrive} abort={() => abort(redrive)} />
          ))}
        </tbody>
      </table>
      {aborting !== null && <AbortDialog redrive={aborting} onClose={() => abort(null)} />}
    </section>
  )
}

function RedriveRow({ redrive, abort }: { redrive: RedriveShape; abort(): void }) {
  const { redrive_id, state, matched, redriven, waiting, skipped, per_second } = redrive
  const mayAbort = useMayChange(redrive.actor)
  const notes = [
    waiting > 0 && w().waiting(formatNumber(waiting)),
    skipped > 0 && w().skipped(formatNumber(skipped)),
    per_second !== null && state === 'running' && w().perSecond(formatNumber(per_second)),
  ].filter((note) => note !== false)
  return (
    <tr data-id={redrive_id}>
      <td>{w()[state]}</td>
      <td>
        <Progress
          done={redriven + skipped}
          all={matched}
          text={w().counts(formatNumber(redriven), formatNumber(matched))}
        />
        {notes.length > 0 && <span class="note">{notes.join(', ')}</span>}
      </td>
      <td class="wide clip" title={filterText(redrive.filter)}>
        {filterText(redrive.filter)}
      </td>
      <td class="wide">{redrive.actor}</td>
      <td class="number medium">
        <Age of={redrive.began_at} />
      </td>
      <td class="number">
        {state === 'running' && mayAbort && (
          <button type="button" class="danger" onClick={abort}>
            {w().abort}
          </button>
        )}
      </td>
    </tr>
  )
}

function AbortDialog({ redrive, onClose }: { redrive: RedriveShape; onClose(): void }) {
  const { redrive_id, matched, redriven, skipped } = redrive
  const run = async () => {
    await send('POST', `/v1/dead-letters/redrives/${redrive_id}/abort`)
    notify(w().wasAborted)
    void readAgain()
  }
  return (
    <ActionDialog title={w().abortTitle} action={w().abort} danger run={run} onClose={onClose}>
      <p>{w().abortText(formatNumber(redriven), formatNumber(matched - redriven - skipped))}</p>
    </ActionDialog>
  )
}
