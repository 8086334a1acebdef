import { type HeldRunShape, WORKER_STATES, type WorkerShape, type WorkerState } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, Command, commandLine, Instant, shortId } from '../parts/text.tsx'
import { withQuery } from '../server/call.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { DrainDialog, EnrollDialog, LineDialog, type Made, RevokeDialog } from './workers-actions.tsx'

const w = words(
  {
    title: 'Workers',
    caption: 'Workers, those that are online first',
    enroll: 'Enroll a worker',
    worker: 'Worker',
    state: 'State',
    online: 'Online',
    detached: 'Detached',
    unseen: 'Not seen',
    revoked: 'Revoked',
    draining: (left: string, one: boolean) => `Draining, ${left} ${one ? 'job' : 'jobs'} left`,
    drained: 'Drained',
    agent: (version: string) => `agent ${version}`,
    queues: 'Queues',
    all: 'all',
    leases: 'Holds',
    seen: 'Last seen',
    token: 'Token until',
    actions: 'Actions',
    more: (count: string) => `${count} more`,
    others: (count: string) => `and ${count} others`,
    drain: 'Drain',
    drainNamed: (name: string) => `Drain ${name}`,
    resume: 'Resume',
    resumeNamed: (name: string) => `Resume ${name}`,
    revoke: 'Revoke',
    revokeNamed: (name: string) => `Revoke ${name}`,
    none: 'No workers yet',
    noneHow: 'A worker on another machine takes jobs over HTTPS. This command prints the line that enrolls one:',
  },
  {
    title: 'ワーカー',
    caption: 'ワーカー(稼働中が先)',
    enroll: 'ワーカーを登録',
    worker: 'ワーカー',
    state: '状態',
    online: '稼働中',
    detached: '停止',
    unseen: '応答なし',
    revoked: '失効',
    draining: (left) => `ドレイン中(残り ${left} 件)`,
    drained: 'ドレイン済み',
    agent: (version) => `エージェント ${version}`,
    queues: 'キュー',
    all: 'すべて',
    leases: '保持',
    seen: '最終確認',
    token: 'トークン期限',
    actions: '操作',
    more: (count) => `ほか ${count} 件`,
    others: (count) => `さらに ${count} 件`,
    drain: 'ドレイン',
    drainNamed: (name) => `${name} をドレイン`,
    resume: '再開',
    resumeNamed: (name) => `${name} を再開`,
    revoke: '失効',
    revokeNamed: (name) => `${name} を失効`,
    none: 'ワーカーはまだありません',
    noneHow: '別のマシンのワーカーは HTTPS でジョブを受け取ります。次のコマンドで登録用の行を作れます。',
  },
)

/** The colours of the states. */
const TONES = { online: 'SUCCEEDED', detached: 'CANCELED', unseen: 'TIMED_OUT', revoked: 'FAILED' } as const

export default function Workers() {
  const list = usePages<WorkerShape>('/v1/workers')
  const [enrolling, enroll] = useState(false)
  const [made, setMade] = useState<Made | null>(null)
  const [draining, drain] = useState<WorkerShape | null>(null)
  const [leaving, revoke] = useState<WorkerShape | null>(null)
  const mayOperate = useCan('operate')
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        {mayOperate && (
          <button type="button" class="main" onClick={() => enroll(true)}>
            {w().enroll}
          </button>
        )}
      </div>
      {enrolling && <EnrollDialog onMade={setMade} onClose={() => enroll(false)} />}
      {made !== null && <LineDialog made={made} onClose={() => setMade(null)} />}
      {draining !== null && <DrainDialog worker={draining} onClose={() => drain(null)} />}
      {leaving !== null && <RevokeDialog worker={leaving} onClose={() => revoke(null)} />}
      <div class="card list">
        <Loaded of={list as never} empty={{ is: (rows: WorkerShape[]) => rows.length === 0, show: <NoWorker /> }}>
          {(rows: WorkerShape[]) => <WorkerTable rows={rows} actions={mayOperate ? { drain, revoke } : null} />}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

function NoWorker() {
  return (
    <Empty title={w().none}>
      <p>{w().noneHow}</p>
      <Command text={commandLine('workers enroll lab-pc --queue default')} />
    </Empty>
  )
}

const rank = (state: WorkerState) => WORKER_STATES.indexOf(state)

interface WorkerTableProps {
  rows: readonly WorkerShape[]
  /** What the buttons do; null: the visitor may not change workers. */
  actions: Record<'drain' | 'revoke', (worker: WorkerShape) => void> | null
}

function WorkerTable({ rows, actions }: WorkerTableProps) {
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().worker}</th>
          <th scope="col">{w().state}</th>
          <th scope="col" class="medium">
            {w().queues}
          </th>
          <th scope="col">{w().leases}</th>
          <th scope="col" class="number medium">
            {w().seen}
          </th>
          <th scope="col" class="wide">
            {w().token}
          </th>
          {actions !== null && <th scope="col">{w().actions}</th>}
        </tr>
      </thead>
      <tbody>
        {rows
          .toSorted((a, b) => rank(a.state) - rank(b.state))
          .map((worker) => (
            <tr key={worker.worker_id} data-id={worker.worker_id}>
              <td class="worker" title={worker.worker_id}>
                {worker.name}
                <small>{machineOf(worker)}</small>
              </td>
              <td class="worker">
                <span class="pill" data-state={TONES[worker.state]}>
                  {w()[worker.state]}
                </span>
                <Drain of={worker} />
              </td>
              <td class="medium worker">
                {worker.queues === null
                  ? w().all
                  : worker.queues.map((queue) => (
                      <>
                        <Link key={queue} href={withQuery('/jobs', { queue })} data-row="">
                          {queue}
                        </Link>{' '}
                      </>
                    ))}
              </td>
              <td class="holds">
                <Holds of={worker} />
              </td>
              <td class="number medium">
                <Age of={worker.last_seen_at} />
              </td>
              <td class="wide worker">
                <Instant of={worker.token_expires_at} />
              </td>
              {actions !== null && (
                <td class="buttons stacked">
                  {worker.state !== 'revoked' && (
                    <>
                      <button
                        type="button"
                        class="quiet"
                        aria-label={
                          worker.draining_since === null ? w().drainNamed(worker.name) : w().resumeNamed(worker.name)
                        }
                        onClick={() => actions.drain(worker)}
                      >
                        {worker.draining_since === null ? w().drain : w().resume}
                      </button>
                      <button
                        type="button"
                        class="danger"
                        aria-label={w().revokeNamed(worker.name)}
                        onClick={() => actions.revoke(worker)}
                      >
                        {w().revoke}
                      </button>
                    </>
                  )}
                </td>
              )}
            </tr>
          ))}
      </tbody>
    </table>
  )
}

function Drain({ of: { draining_since, live_leases, state } }: { of: WorkerShape }) {
  if (draining_since === null || state === 'revoked') return null
  return <small>{live_leases === 0 ? w().drained : w().draining(formatNumber(live_leases), live_leases === 1)}</small>
}

/** More jobs of a worker are shown only when they are asked for. */
const HOLDS_FIRST = 3

function Holds({ of: { holds, live_leases } }: { of: WorkerShape }) {
  if (live_leases === 0) return <>–</>
  const others = live_leases - holds.length
  return (
    <>
      <span class="count">{formatNumber(live_leases)}</span>
      <HeldRuns of={holds.slice(0, HOLDS_FIRST)} />
      {live_leases > HOLDS_FIRST && (
        <details>
          <summary>{w().more(formatNumber(live_leases - HOLDS_FIRST))}</summary>
          <HeldRuns of={holds.slice(HOLDS_FIRST)} />
          {others > 0 && w().others(formatNumber(others))}
        </details>
      )}
    </>
  )
}

function HeldRuns({ of }: { of: readonly HeldRunShape[] }) {
  return (
    <ul>
      {of.map(({ job_id, kind, queue, assigned_at }) => (
        <li key={job_id}>
          <Link href={`/jobs/${job_id}`} title={`${job_id} · ${queue}`}>
            {shortId(job_id)}
          </Link>{' '}
          {kind} · <Age of={assigned_at} />
        </li>
      ))}
    </ul>
  )
}

/** The facts that the agent sends. A worker may send anything, so only text is shown. */
function machineOf({ meta }: WorkerShape): string {
  const facts = ['hostname', 'platform', 'version', 'node'].flatMap((name) => {
    const fact = meta[name]
    if (typeof fact !== 'string' || fact === '') return []
    return [name === 'version' ? w().agent(fact) : fact]
  })
  return facts.join(' · ')
}
