import type { Page, RunShape, WorkerShape } from '@ichido/sdk/protocol'
import { errorText, formatDuration, nowMs, Pill } from '../parts/text.tsx'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatInstant, words } from '../words.ts'
import { PART_NAMES, type Part, partsOf } from './job-timeline-parts.ts'

const w = words(
  {
    title: 'Runs',
    due: 'Not due yet',
    retry: 'Delay before the retry',
    waited: 'Waits for a worker',
    leased: 'Leased',
    running: 'Runs',
    confirming: 'Worker silent',
    run: 'Run',
    state: 'State',
    worker: 'Worker',
    error: 'Error',
    time: 'What it did',
    part: (name: string, duration: string) => `${name} ${duration}`,
    from: (instant: string) => `from ${instant}`,
    span: (from: string, duration: string) => `${from}, ${duration} in all`,
  },
  {
    title: '実行履歴',
    due: '開始時刻待ち',
    retry: '再試行までの間隔',
    waited: 'ワーカー待ち',
    leased: '割当',
    running: '実行',
    confirming: 'ワーカー応答なし',
    run: '実行',
    state: '状態',
    worker: 'ワーカー',
    error: 'エラー',
    time: '経過',
    part: (name, duration) => `${name} ${duration}`,
    from: (instant) => `${instant} から`,
    span: (from, duration) => `${from} から計 ${duration}`,
  },
)

/** When and why each run waited, who held it and how long it ran, as bars on one scale and in words. */
export function Timeline({ runs }: { runs: readonly RunShape[] }) {
  const nameOf = useWorkerNames()
  const parts = runs.map((run) => partsOf(run, nowMs.value))
  const all = parts.flat()
  const fromMs = Math.min(...all.map((part) => part.fromMs))
  const wholeMs = Math.max(1, Math.max(...all.map((part) => part.toMs)) - fromMs)
  const failed = runs.some((run) => errorText(run) !== '')
  return (
    <section class="card list" aria-label={w().title}>
      <table class="timeline">
        <caption class="unseen">{w().title}</caption>
        <thead>
          <tr>
            <th scope="col" class="number">
              {w().run}
            </th>
            <th scope="col">{w().state}</th>
            <th scope="col" class="wide">
              {w().worker}
            </th>
            <th scope="col">{w().time}</th>
            {failed && (
              <th scope="col" class="wide">
                {w().error}
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {runs.map((run, i) => (
            <tr key={run.run_id}>
              <td class="number">{run.run_no}</td>
              <td>
                <Pill of={run} />
              </td>
              <td class="wide" title={run.assigned_worker_id ?? ''}>
                {nameOf(run.assigned_worker_id)}
              </td>
              <td class="track">
                <Bars parts={parts[i] ?? []} fromMs={fromMs} wholeMs={wholeMs} />
                {run.assigned_worker_id !== null && <small>{nameOf(run.assigned_worker_id)}</small>}
                {errorText(run) !== '' && <small class="error">{errorText(run)}</small>}
              </td>
              {failed && (
                <td class="wide clip error" title={errorText(run)}>
                  {errorText(run)}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      <p class="note legend">
        {PART_NAMES.filter((name) => all.some((part) => part.name === name)).map((name) => (
          <span key={name}>
            <i data-part={name} /> {w()[name]}
          </span>
        ))}
        <span>{w().span(formatInstant(new Date(fromMs).toISOString()), formatDuration(wholeMs))}</span>
      </p>
    </section>
  )
}

/** The name of a worker. A visitor who may not see the workers gets the id. */
function useWorkerNames(): (id: string | null) => string {
  const { data } = useRead<Page<WorkerShape>>('/v1/workers?limit=100', CALM_MS, useCan('readAll'))
  const names = new Map(data?.data.map(({ worker_id, name }) => [worker_id, name]))
  return (id) => (id === null ? '–' : (names.get(id) ?? id))
}

interface BarsProps {
  parts: readonly Part[]
  fromMs: number
  wholeMs: number
}

function Bars({ parts, fromMs, wholeMs }: BarsProps) {
  const words = parts.map(({ name, fromMs, toMs }) => w().part(w()[name], formatDuration(toMs - fromMs)))
  return (
    <>
      <div class="bars" aria-hidden="true">
        {parts.map((part, i) => (
          <Bar key={part.name} part={part} fromMs={fromMs} wholeMs={wholeMs} text={words[i] ?? ''} />
        ))}
      </div>
      <span class="note">{words.join(' · ')}</span>
    </>
  )
}

interface BarProps extends Omit<BarsProps, 'parts'> {
  part: Part
  text: string
}

function Bar({ part, fromMs, wholeMs, text }: BarProps) {
  const place = (node: HTMLElement | null) => {
    node?.style.setProperty('--from', `${((part.fromMs - fromMs) / wholeMs) * 100}%`)
    node?.style.setProperty('--length', `${((part.toMs - part.fromMs) / wholeMs) * 100}%`)
  }
  const began = w().from(formatInstant(new Date(part.fromMs).toISOString()))
  return <span ref={place} data-part={part.name} title={`${text}, ${began}`} />
}
