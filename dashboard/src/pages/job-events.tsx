import type { EventShape } from '@ichido/sdk/protocol'
import { useEffect, useState } from 'preact/hooks'
import { messageOf } from '../parts/loaded.tsx'
import { client } from '../server/call.ts'
import { formatClock, words } from '../words.ts'

const w = words(
  {
    title: 'Events',
    none: 'No event yet.',
    cursor: 'No.',
    stage: 'Stage',
    seq: 'Seq',
    data: 'Data',
    time: 'Time',
    dropped: (n: number) => `The page keeps the last ${n} events. The API has all of them.`,
    reset: 'Older events are no longer kept.',
  },
  {
    title: 'イベント',
    none: 'イベントはまだありません。',
    cursor: '番号',
    stage: '段階',
    seq: 'Seq',
    data: 'データ',
    time: '時刻',
    dropped: (n) => `このページには直近 ${n} 件だけを残します。すべては API にあります。`,
    reset: '古いイベントは保存期間を過ぎました。',
  },
)

/** A job may publish without end, and the page must not grow with it. */
const KEPT_MAX = 300
/** Events that arrive together are drawn together. */
const DRAW_MS = 100

interface Kept {
  events: EventShape[]
  dropped: boolean
  reset: boolean
}

/** @param runs a new run continues a stream that has ended */
function useEvents(jobId: string, runs: number): Kept & { problem: string | null } {
  const [kept, setKept] = useState<Kept>({ events: [], dropped: false, reset: false })
  const [problem, setProblem] = useState<string | null>(null)
  useEffect(() => {
    const stop = new AbortController()
    let state: Kept = { events: [], dropped: false, reset: false }
    let drawing: ReturnType<typeof setTimeout> | undefined
    const draw = () => {
      drawing ??= setTimeout(() => {
        drawing = undefined
        setKept(state)
      }, DRAW_MS)
    }
    const follow = async () => {
      const onReset = () => {
        state = { ...state, reset: true }
      }
      const onTrouble = (error: unknown) => setProblem(error === null ? null : messageOf(error))
      for await (const event of client.watch(jobId, { signal: stop.signal, onReset, onTrouble })) {
        const events = [...state.events, event]
        state = { ...state, events: events.slice(-KEPT_MAX), dropped: state.dropped || events.length > KEPT_MAX }
        draw()
      }
    }
    follow().catch((error: unknown) => {
      if (!stop.signal.aborted) setProblem(messageOf(error))
    })
    return () => {
      stop.abort()
      clearTimeout(drawing)
    }
  }, [jobId, runs])
  return { ...kept, problem }
}

export function Events({ jobId, runs }: { jobId: string; runs: number }) {
  const { events, dropped, reset, problem } = useEvents(jobId, runs)
  return (
    <section class="card list" aria-label={w().title}>
      <h3 class="pad">{w().title}</h3>
      {problem !== null && (
        <p class="problem pad" role="alert">
          {problem}
        </p>
      )}
      {reset && <p class="note">{w().reset}</p>}
      {events.length === 0 ? (
        <p class="note">{w().none}</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">
                {w().cursor}
              </th>
              <th scope="col">{w().stage}</th>
              <th scope="col" class="number medium">
                {w().seq}
              </th>
              <th scope="col">{w().data}</th>
              <th scope="col" class="medium">
                {w().time}
              </th>
            </tr>
          </thead>
          <tbody>
            {[...events].reverse().map((event) => (
              <tr key={event.cursor}>
                <td class="number">{event.cursor}</td>
                <td>{event.stage}</td>
                <td class="number medium">{event.seq}</td>
                <td class="data">
                  <code>{JSON.stringify(event.data)}</code>
                </td>
                <td class="medium">{formatClock(event.timestamp)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {dropped && <p class="note">{w().dropped(KEPT_MAX)}</p>}
    </section>
  )
}
