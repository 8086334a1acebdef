import type { Page, QueueRateShape, QueueShape, WorkerShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Command, commandLine, formatDuration } from '../parts/text.tsx'
import { withQuery } from '../server/call.ts'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { LimitsDialog, PauseDialog } from './queues-actions.tsx'

const w = words(
  {
    title: 'Queues',
    caption: 'Queues that have work or settings, by name',
    queue: 'Queue',
    ready: 'Ready',
    delayed: 'Delayed',
    running: 'Running',
    oldest: 'Oldest',
    rate: 'In / out per min',
    rates: (submitted: string, ended: string) => `${submitted} / ${ended}`,
    limited: (running: string, limit: string) => `${running} of ${limit}`,
    workers: 'Workers online',
    nobody: 'nobody',
    paused: 'Paused',
    actions: 'Actions',
    pause: 'Pause',
    resume: 'Resume',
    limits: 'Change',
    of: (action: string, queue: string) => `${action} ${queue}`,
    none: 'No queues yet',
    noneHow: 'A queue exists as soon as a job is submitted to it:',
  },
  {
    title: 'キュー',
    caption: '作業または設定のあるキュー(名前順)',
    queue: 'キュー',
    ready: '実行可能',
    delayed: '遅延',
    running: '実行中',
    oldest: '最長の待ち',
    rate: '投入 / 終了(毎分)',
    rates: (submitted, ended) => `${submitted} / ${ended}`,
    limited: (running, limit) => `${running} / ${limit}`,
    workers: '稼働中のワーカー',
    nobody: 'なし',
    paused: '停止中',
    actions: '操作',
    pause: '停止',
    resume: '再開',
    limits: '変更',
    of: (action, queue) => `${queue} を${action}`,
    none: 'キューはまだありません',
    noneHow: 'ジョブを投入するとキューができます。',
  },
)

type Asked = { queue: QueueShape; what: 'pause' | 'limits' }
/** The names of so many workers are shown. */
const NAMES_MAX = 3

export default function Queues() {
  const list = usePages<QueueShape>('/v1/queues')
  const workers = useRead<Page<WorkerShape>>('/v1/workers?limit=100', CALM_MS).data?.data ?? []
  const rates = useRead<{ data: QueueRateShape[] }>('/v1/stats/rates').data?.data ?? []
  const [asked, ask] = useState<Asked | null>(null)
  const close = () => ask(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      {asked?.what === 'pause' && <PauseDialog queue={asked.queue} onClose={close} />}
      {asked?.what === 'limits' && <LimitsDialog queue={asked.queue} onClose={close} />}
      <div class="card list">
        <Loaded of={list as never} empty={{ is: (rows: QueueShape[]) => rows.length === 0, show: <NoQueue /> }}>
          {(rows: QueueShape[]) => <QueueTable rows={rows} workers={workers} rates={rates} ask={ask} />}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

function NoQueue() {
  return (
    <Empty title={w().none}>
      <p>{w().noneHow}</p>
      <Command text={commandLine('demo')} />
    </Empty>
  )
}

interface QueueTableProps {
  rows: readonly QueueShape[]
  workers: readonly WorkerShape[]
  rates: readonly QueueRateShape[]
  ask(asked: Asked): void
}

function QueueTable({ rows, workers, rates, ask }: QueueTableProps) {
  const mayOperate = useCan('operate')
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().queue}</th>
          {[w().ready, w().running].map((name) => (
            <th key={name} scope="col" class="number">
              {name}
            </th>
          ))}
          <th scope="col" class="number medium">
            {w().delayed}
          </th>
          <th scope="col" class="number medium">
            {w().oldest}
          </th>
          <th scope="col" class="number medium">
            {w().rate}
          </th>
          <th scope="col" class="wide">
            {w().workers}
          </th>
          {mayOperate && <th scope="col">{w().actions}</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map((queue) => (
          <tr key={queue.name} data-id={queue.name}>
            <td>
              <Link href={withQuery('/jobs', { queue: queue.name })} data-row="">
                {queue.name}
              </Link>{' '}
              {queue.paused && (
                <span class="pill" data-state="TIMED_OUT">
                  {w().paused}
                </span>
              )}
            </td>
            <td class="number">{formatNumber(queue.ready)}</td>
            <td class="number">
              {queue.max_concurrent === null
                ? formatNumber(queue.running)
                : w().limited(formatNumber(queue.running), formatNumber(queue.max_concurrent))}
            </td>
            <td class="number medium">{formatNumber(queue.delayed)}</td>
            <td class="number medium">
              {queue.oldest_ready_seconds === null ? '–' : formatDuration(queue.oldest_ready_seconds * 1_000, 1)}
            </td>
            <td class="number medium">{rateText(rates, queue.name)}</td>
            <td class="wide name" title={namesOf(workers, queue.name)}>
              {namesOf(workers, queue.name)}
            </td>
            {mayOperate && (
              <td class="buttons">
                <button
                  type="button"
                  class="quiet"
                  aria-label={w().of(queue.paused ? w().resume : w().pause, queue.name)}
                  onClick={() => ask({ queue, what: 'pause' })}
                >
                  {queue.paused ? w().resume : w().pause}
                </button>
                <button
                  type="button"
                  class="quiet"
                  aria-label={w().of(w().limits, queue.name)}
                  onClick={() => ask({ queue, what: 'limits' })}
                >
                  {w().limits}
                </button>
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function rateText(rates: readonly QueueRateShape[], queue: string): string {
  const rate = rates.find((one) => one.queue === queue)
  return w().rates(formatNumber(rate?.submitted_per_minute ?? 0), formatNumber(rate?.ended_per_minute ?? 0))
}

function namesOf(workers: readonly WorkerShape[], queue: string): string {
  const serving = workers.filter(({ state, queues }) => state === 'online' && (queues?.includes(queue) ?? true))
  if (serving.length === 0) return w().nobody
  const more = serving.length > NAMES_MAX ? ` +${serving.length - NAMES_MAX}` : ''
  const names = serving.slice(0, NAMES_MAX).map(({ name }) => name)
  return `${names.join(', ')}${more}`
}
