import { ECO2_STAGES, type EventShape, type JobDetail, type JobStateShape, PROGRESS_STAGE } from '@ichido/sdk/protocol'
import { ACTIVE, Age, stateWord } from '../parts/text.tsx'
import { LIVE_MS, useRead } from '../server/queries.ts'
import { formatNumber, words } from '../words.ts'

const w = words(
  {
    title: 'Progress',
    submitted: 'Submitted',
    leased: 'Leased',
    running: 'Running',
    ended: 'Ended',
    percent: (n: string) => `${n} %`,
    ago: 'ago',
    done: 'done',
    current: 'now',
    ahead: 'to come',
  },
  {
    title: '進行状況',
    submitted: '投入',
    leased: '割当',
    running: '実行',
    ended: '終了',
    percent: (n) => `${n} %`,
    ago: '前',
    done: '完了',
    current: '現在',
    ahead: 'これから',
  },
)

interface Step {
  name: string
  /** The colour of the step, if the job ended there. */
  state?: JobDetail['state']
  place: 'done' | 'current' | 'ahead'
  event: EventShape | undefined
}

/** The stages of a job with its latest events. A job without declared stages shows its own moves. */
export function Stepper({ job }: { job: JobDetail }) {
  const active = ACTIVE.includes(job.state)
  const { data } = useRead<JobStateShape>(`/v1/jobs/${job.job_id}/state`, active ? LIVE_MS : false)
  const steps = stepsOf(job, data)
  const progress = data?.stages[PROGRESS_STAGE]
  return (
    <section class="card pad" aria-label={w().title}>
      <ol class="steps">
        {steps.map(({ name, place, event, state }) => (
          <li key={name} data-place={place} data-state={state} aria-current={place === 'current' ? 'step' : undefined}>
            <b>{name}</b>
            <span class="unseen">{w()[place]}</span>
            {event !== undefined && <EventNote event={event} />}
          </li>
        ))}
      </ol>
      {progress !== undefined && <Percent event={progress} />}
    </section>
  )
}

function stepsOf(job: JobDetail, state: JobStateShape | undefined): Step[] {
  const declared = stageNames(job.policy.stages)
  const ended = !ACTIVE.includes(job.state)
  if (declared.length > 0) {
    const reached = declared.findLastIndex((name) => state?.stages[name] !== undefined)
    const stopped = ended && job.state !== 'SUCCEEDED'
    return declared.map((name, i) => ({
      name,
      event: state?.stages[name],
      place: placeOf(i, job.state === 'SUCCEEDED' ? declared.length : reached, ended),
      ...(stopped && i === reached ? { state: job.state } : {}),
    }))
  }
  // A job that was canceled while it waited never began the steps in between.
  const began = { leased: job.attempt > 0, running: job.started_at !== null }
  const at = { PENDING: 0, ORPHANED: 0, ASSIGNED: 1, RUNNING: 2 }[job.state as string] ?? 3
  const step = (name: string, i: number, reached = true): Step => ({
    name,
    place: ended && !reached ? 'ahead' : placeOf(i, at, ended),
    event: undefined,
  })
  return [
    step(w().submitted, 0),
    step(w().leased, 1, began.leased),
    step(w().running, 2, began.running),
    ended ? { ...step(stateWord(job.state), 3), state: job.state } : step(w().ended, 3),
  ]
}

const placeOf = (i: number, at: number, over: boolean): Step['place'] =>
  i < at || (i === at && over) ? 'done' : i === at ? 'current' : 'ahead'

function stageNames(stages: unknown): string[] {
  if (stages === 'eco2') return Object.keys(ECO2_STAGES)
  if (Array.isArray(stages))
    return stages.flatMap(({ name }: { name?: unknown }) => (typeof name === 'string' ? name : []))
  if (typeof stages !== 'object' || stages === null) return []
  const ranges = Object.entries(stages as Record<string, { from?: number }>)
  return ranges.sort(([, a], [, b]) => (a.from ?? 0) - (b.from ?? 0)).map(([name]) => name)
}

function EventNote({ event: { data, timestamp } }: { event: EventShape }) {
  const text = textOf(data)
  return (
    <small title={text}>
      {text} <Age of={timestamp} /> {w().ago}
    </small>
  )
}

/** Workers write for people in `text`; other data are shown as they are. */
function textOf(data: unknown): string {
  if (data === null) return ''
  if (typeof data === 'string') return data
  if (typeof data === 'object' && 'text' in data && typeof data.text === 'string') return data.text
  return JSON.stringify(data)
}

/** A worker that reports `percent` gets a bar. */
function Percent({ event: { data } }: { event: EventShape }) {
  const percent = typeof data === 'object' && data !== null && 'percent' in data ? Number(data.percent) : Number.NaN
  if (!(percent >= 0 && percent <= 100)) return null
  const said = typeof data === 'object' && data !== null && 'text' in data ? textOf(data) : ''
  return (
    <div class="percent">
      <progress class="bar" max="100" value={percent} aria-label={w().title} />
      <b>{w().percent(formatNumber(Math.round(percent)))}</b>
      {said !== '' && <small>{said}</small>}
    </div>
  )
}
