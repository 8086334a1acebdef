import type { AlertShape, JobState, Page, QueueShape } from '@ichido/sdk/protocol'
import { Link } from 'wouter-preact'
import { useFilters } from '../parts/filters.tsx'
import { Loaded } from '../parts/loaded.tsx'
import { withQuery } from '../server/call.ts'
import { CALM_MS, useRead } from '../server/queries.ts'
import { SERIES_RANGES, type SeriesPoint, type SeriesShape, useSeries } from '../server/series.ts'
import { formatCompact, formatNumber, language, words } from '../words.ts'
import { Chart, type ChartProps, type Line } from './overview-chart.tsx'

const w = words(
  {
    title: 'Overview',
    range: 'Range',
    '15m': '15 min',
    '1h': '1 h',
    '24h': '24 h',
    '7d': '7 d',
    queue: 'Queue',
    allQueues: 'All queues',
    waiting: 'Waiting',
    running: 'Running',
    workers: 'Workers online',
    deadLetters: 'Dead letters',
    alerts: 'Open alerts',
    failures: 'Failures in range',
    throughput: 'Throughput (jobs a minute)',
    submitted: 'Submitted',
    started: 'Started',
    succeeded: 'Succeeded',
    depth: 'Queue depth and running',
    ready: 'Ready',
    delayed: 'Delayed',
    completion: 'Completion rate (succeeded of all that ended)',
    rate: 'Succeeded',
    wait: 'Wait until the start',
    run: 'Run time',
    median: 'p50',
    tail: 'p99',
    problems: 'Failures, timeouts and retries',
    failed: 'Failed',
    timedOut: 'Timed out',
    retried: 'Retried',
    dead: 'Dead letters',
    deadNew: 'New',
    deadAll: 'Kept',
    keyHits: 'Key hits (repeated submissions)',
    hits: 'Key hits',
    online: 'Online',
    cost: 'Cost',
  },
  {
    title: '概要',
    range: '期間',
    '15m': '15 分',
    '1h': '1 時間',
    '24h': '24 時間',
    '7d': '7 日',
    queue: 'キュー',
    allQueues: 'すべてのキュー',
    waiting: '待機中',
    running: '実行中',
    workers: '稼働中のワーカー',
    deadLetters: 'デッドレター',
    alerts: '未解決のアラート',
    failures: '期間内の失敗',
    throughput: '処理量(ジョブ/分)',
    submitted: '投入',
    started: '開始',
    succeeded: '成功',
    depth: 'キューの長さと実行数',
    ready: '実行可能',
    delayed: '遅延',
    completion: '完了率(終了したうち成功した割合)',
    rate: '成功',
    wait: '開始までの待ち時間',
    run: '実行時間',
    median: 'p50',
    tail: 'p99',
    problems: '失敗・時間切れ・再試行',
    failed: '失敗',
    timedOut: '時間切れ',
    retried: '再試行',
    dead: 'デッドレター',
    deadNew: '新規',
    deadAll: '保持中',
    keyHits: 'キーの一致(再送された投入)',
    hits: '一致',
    online: '稼働中',
    cost: 'コスト',
  },
)

const NAMES = ['range', 'queue'] as const

export default function Overview() {
  const { filters, change } = useFilters(NAMES)
  const range = SERIES_RANGES.find((name) => name === filters.range) ?? '1h'
  const series = useSeries(range, filters.queue)
  const queues = [...new Set([...(filters.queue === undefined ? [] : [filters.queue]), ...(series.data?.queues ?? [])])]
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        <fieldset class="states">
          <legend class="unseen">{w().range}</legend>
          {SERIES_RANGES.map((name) => (
            <button
              key={name}
              type="button"
              class="quiet"
              aria-pressed={name === range}
              onClick={() => change({ range: name })}
            >
              {w()[name]}
            </button>
          ))}
        </fieldset>
        <label class="line">
          {w().queue}
          <select value={filters.queue ?? ''} onChange={(event) => change({ queue: event.currentTarget.value })}>
            <option value="">{w().allQueues}</option>
            {queues.sort().map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Figures series={series.data} queue={filters.queue} />
      <Loaded of={series}>{(data) => <Charts series={data} />}</Loaded>
    </>
  )
}

/** How it is now. The numbers that only the series has are those of its last measurement. */
function Figures({ series, queue }: { series: SeriesShape | undefined; queue: string | undefined }) {
  const states = useRead<Record<JobState, number>>('/v1/stats', undefined, queue === undefined).data
  const one = useRead<QueueShape>(`/v1/queues/${encodeURIComponent(queue ?? '')}`, undefined, queue !== undefined).data
  const alerts = useRead<Page<AlertShape>>('/v1/alerts?limit=100', CALM_MS).data
  const last = series?.points.findLast(({ sampled }) => sampled)
  const work =
    queue === undefined
      ? states && { waiting: states.PENDING, running: states.ASSIGNED + states.RUNNING + states.ORPHANED }
      : one && { waiting: one.ready + one.delayed, running: one.running }
  const failures = series?.points.reduce((sum, { failed, timed_out }) => sum + failed + timed_out, 0)
  const jobs = (state: string) => withQuery('/jobs', { state, queue })
  const figures: [name: string, value: number | null | undefined, href: string, bad: boolean][] = [
    [w().waiting, work?.waiting, jobs('PENDING'), false],
    [w().running, work?.running, jobs('ASSIGNED,RUNNING,ORPHANED'), false],
    [w().workers, last?.workers_online, '/workers', false],
    [w().deadLetters, last?.dead_letters, withQuery('/dead-letters', { queue }), true],
    [w().alerts, alerts?.data.length, '/alerts', true],
    [w().failures, failures, jobs('FAILED,TIMED_OUT'), true],
  ]
  return (
    <ul class="figures">
      {figures.map(([name, value, href, bad]) => (
        <li key={name} class="card">
          <Link href={href}>
            <b class={bad && (value ?? 0) > 0 ? 'error' : ''}>
              {value === null || value === undefined ? '–' : formatNumber(value)}
            </b>
            <span>{name}</span>
          </Link>
        </li>
      ))}
    </ul>
  )
}

type Named<T> = { [K in keyof T]: T[K] extends number | null ? K : never }[keyof T]

/** A line of a number that the point contains. */
const line = (name: string, tone: JobState, field: Named<SeriesPoint>): Line => ({
  name,
  tone,
  of: (point) => point[field],
})

/** A count as a rate. A step that has not ended would show too low a rate. */
const perMinute = (name: string, tone: JobState, field: 'submitted' | 'started' | 'succeeded'): Line => ({
  name,
  tone,
  of: (point, stepSeconds) =>
    Date.parse(point.at) + stepSeconds * 1_000 > Date.now() ? null : (point[field] * 60) / stepSeconds,
})

const quantiles = (field: 'wait_ms' | 'run_ms'): Line[] => [
  { name: w().median, tone: 'RUNNING', of: (point) => point[field].p50 },
  { name: w().tail, tone: 'TIMED_OUT', of: (point) => point[field].p99 },
]

function completion({ succeeded, failed, timed_out, canceled }: SeriesPoint): number | null {
  const ended = succeeded + failed + timed_out + canceled
  return ended === 0 ? null : (succeeded * 100) / ended
}

const UNITS = [
  ['hour', 3_600_000],
  ['minute', 60_000],
  ['second', 1_000],
] as const

/** In one unit with its tenths, because neighbours on an axis must differ. */
function duration(ms: number): string {
  const [unit, unitMs] = UNITS.find(([, unitMs]) => ms >= unitMs) ?? ['millisecond', 1]
  const digits = unit === 'millisecond' ? 0 : 1
  const format = { style: 'unit', unit, unitDisplay: 'narrow', maximumFractionDigits: digits } as const
  return new Intl.NumberFormat(language.value, format).format(ms / unitMs)
}

function Charts({ series }: { series: SeriesShape }) {
  const charts: Omit<ChartProps, 'series'>[] = [
    {
      title: w().throughput,
      format: formatCompact,
      lines: [
        perMinute(w().submitted, 'PENDING', 'submitted'),
        perMinute(w().started, 'RUNNING', 'started'),
        perMinute(w().succeeded, 'SUCCEEDED', 'succeeded'),
      ],
    },
    {
      title: w().depth,
      format: formatCompact,
      measured: true,
      lines: [
        line(w().ready, 'PENDING', 'ready'),
        line(w().delayed, 'ASSIGNED', 'delayed'),
        line(w().running, 'RUNNING', 'running'),
      ],
    },
    {
      title: w().completion,
      format: (value) => `${formatCompact(value)} %`,
      max: 100,
      lines: [{ name: w().rate, tone: 'SUCCEEDED', of: completion }],
    },
    { title: w().wait, format: duration, lines: quantiles('wait_ms') },
    { title: w().run, format: duration, lines: quantiles('run_ms') },
    {
      title: w().problems,
      format: formatCompact,
      lines: [
        line(w().failed, 'FAILED', 'failed'),
        line(w().timedOut, 'TIMED_OUT', 'timed_out'),
        line(w().retried, 'ASSIGNED', 'retried'),
      ],
    },
    {
      title: w().dead,
      format: formatCompact,
      measured: true,
      lines: [line(w().deadAll, 'FAILED', 'dead_letters'), line(w().deadNew, 'TIMED_OUT', 'dead_lettered')],
    },
    { title: w().keyHits, format: formatCompact, lines: [line(w().hits, 'ORPHANED', 'key_hits')] },
    {
      title: w().workers,
      format: formatCompact,
      measured: true,
      lines: [line(w().online, 'SUCCEEDED', 'workers_online')],
    },
    { title: w().cost, format: formatCompact, lines: [line(w().cost, 'ASSIGNED', 'cost')] },
  ]
  return (
    <div class="grid charts">
      {charts.map((chart) => (
        <Chart key={chart.title} series={series} {...chart} />
      ))}
    </div>
  )
}
