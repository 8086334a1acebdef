import type { RunShape } from '@ichido/sdk/protocol'
import { ACTIVE, errorText, formatDuration, nowMs, Pill, Span } from '../parts/text.tsx'
import { formatInstant, words } from '../words.ts'

const w = words(
  {
    title: 'Runs',
    waited: 'waited',
    leased: 'leased',
    running: 'running',
    confirming: 'worker silent',
    run: 'Run',
    state: 'State',
    attempt: 'Attempt',
    worker: 'Worker',
    duration: 'Duration',
    error: 'Error',
    time: 'Time',
    part: (name: string, duration: string) => `${name} ${duration}`,
  },
  {
    title: '実行履歴',
    waited: '待機',
    leased: '割当',
    running: '実行',
    confirming: 'ワーカー応答なし',
    run: '実行',
    state: '状態',
    attempt: '試行',
    worker: 'ワーカー',
    duration: '所要時間',
    error: 'エラー',
    time: '時間',
    part: (name, duration) => `${name} ${duration}`,
  },
)

type PartName = 'waited' | 'leased' | 'running' | 'confirming'

interface Part {
  name: PartName
  fromMs: number
  toMs: number
}

/** When each run waited, was leased and ran, as bars on one scale and as a table. */
export function Timeline({ runs }: { runs: readonly RunShape[] }) {
  const parts = runs.map(partsOf)
  const all = parts.flat()
  const fromMs = Math.min(...all.map((part) => part.fromMs))
  const wholeMs = Math.max(1, Math.max(...all.map((part) => part.toMs)) - fromMs)
  return (
    <section class="card list">
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
            <th scope="col" class="number medium">
              {w().duration}
            </th>
            <th scope="col" class="medium">
              {w().error}
            </th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run, i) => (
            <tr key={run.run_id}>
              <td class="number">{run.run_no}</td>
              <td>
                <Pill of={run} />
              </td>
              <td class="wide clip" title={run.assigned_worker_id ?? ''}>
                {run.assigned_worker_id ?? '–'}
              </td>
              <td class="track">
                {(parts[i] ?? []).map((part) => (
                  <Bar key={part.name} part={part} fromMs={fromMs} wholeMs={wholeMs} />
                ))}
              </td>
              <td class="number medium">
                <Span from={run.started_at} to={ACTIVE.includes(run.state) ? null : run.finished_at} />
              </td>
              <td class="medium clip error" title={errorText(run)}>
                {errorText(run)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}

function partsOf(run: RunShape): Part[] {
  const endMs =
    run.finished_at === null ? Math.max(nowMs.value, Date.parse(run.created_at)) : Date.parse(run.finished_at)
  const confirmingMs =
    run.continuation_state === 'CONFIRMING' && run.lease_expires_at !== null
      ? Math.min(endMs, Date.parse(run.lease_expires_at))
      : null
  const marks: [PartName, number | null][] = [
    ['waited', Date.parse(run.created_at)],
    ['leased', run.assigned_at === null ? null : Date.parse(run.assigned_at)],
    ['running', run.started_at === null ? null : Date.parse(run.started_at)],
    ['confirming', confirmingMs],
  ]
  const known = marks.flatMap(([name, fromMs]) => (fromMs === null ? [] : [{ name, fromMs }]))
  return known.map(({ name, fromMs }, i) => ({ name, fromMs, toMs: Math.max(fromMs, known[i + 1]?.fromMs ?? endMs) }))
}

interface BarProps {
  part: Part
  fromMs: number
  wholeMs: number
}

function Bar({ part, fromMs, wholeMs }: BarProps) {
  const text = w().part(w()[part.name], formatDuration(part.toMs - part.fromMs))
  const place = (node: HTMLElement | null) => {
    node?.style.setProperty('--from', `${((part.fromMs - fromMs) / wholeMs) * 100}%`)
    node?.style.setProperty('--length', `${((part.toMs - part.fromMs) / wholeMs) * 100}%`)
  }
  return (
    <span
      ref={place}
      data-part={part.name}
      role="img"
      aria-label={text}
      title={`${text} (${formatInstant(new Date(part.fromMs).toISOString())})`}
    />
  )
}
