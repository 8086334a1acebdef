import type { JobDetail, ResultShape, WaitingForShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link, useLocation } from 'wouter-preact'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { Loaded } from '../parts/loaded.tsx'
import { ACTIVE, Command, Copy, commandLine, errorText, Instant, Json, Pill, Span, shortId } from '../parts/text.tsx'
import { client } from '../server/call.ts'
import { LIVE_MS, readAgain, useRead } from '../server/queries.ts'
import { useCan, useMayChange } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { Callback } from './job-callback.tsx'
import { CopyAs } from './job-copy.tsx'
import { Events } from './job-events.tsx'
import { Files } from './job-files.tsx'
import { Logs } from './job-logs.tsx'
import { Once } from './job-once.tsx'
import { Stepper } from './job-stepper.tsx'
import { Timeline } from './job-timeline.tsx'

const w = words(
  {
    title: (id: string) => `Job ${id}`,
    id: 'the id',
    cancel: 'Cancel',
    cancelTitle: 'Cancel this job',
    cancelWaiting: 'The job waits. It ends at once, and never runs.',
    cancelRunning: 'The job runs. Its worker is asked to stop it, and it ends as canceled when it has stopped.',
    canceled: 'The job is canceled, or will be when it has stopped.',
    retry: 'Retry',
    retryTitle: 'Retry this job',
    retryText: 'The job gets another run at once, and a full retry budget.',
    retried: 'The job runs again.',
    edit: 'Retry with another payload',
    editText: 'A new job with this payload takes the place of this one.',
    editAction: 'Submit',
    replaced: 'A new job was submitted.',
    badJson: 'This is not JSON.',
    payload: 'Payload',
    result: 'Result',
    summary: 'Summary',
    traceback: 'Traceback',
    facts: 'Facts',
    kind: 'Kind',
    queue: 'Queue',
    user: 'User',
    priority: 'Priority',
    made: 'Made',
    due: 'Due',
    ended: 'Ended',
    took: 'Duration',
    attempt: 'Attempt',
    key: 'Key',
    definition: 'Definition',
    scheduledFor: 'Scheduled for',
    trigger: 'Trigger',
    replaces: 'Replaces',
    cost: 'Cost',
    estimated: (cost: string) => `${cost} (estimated)`,
    labels: 'Labels',
    policy: 'Policy',
    waitsFor: 'Why it waits',
    artifacts: 'Its files have not arrived',
    run_at: 'It is not due yet',
    paused: 'Its queue is paused',
    limit: 'Its queue is at its limit',
    no_worker: 'No worker takes it',
    workers_busy: 'The workers are busy',
    draining: 'The workers of its queue drain',
    quota: 'The quota of its user is full',
  },
  {
    title: (id) => `ジョブ ${id}`,
    id: 'ID',
    cancel: '取り消す',
    cancelTitle: 'このジョブを取り消す',
    cancelWaiting: 'このジョブは待機中です。すぐに終わり、実行されません。',
    cancelRunning: 'このジョブは実行中です。ワーカーに停止を求め、止まった時点で取消済みになります。',
    canceled: 'ジョブを取り消しました。実行中なら停止後に終わります。',
    retry: '再試行',
    retryTitle: 'このジョブを再試行する',
    retryText: 'このジョブはすぐにもう一度実行されます。再試行回数は最初からです。',
    retried: 'ジョブを再試行しました。',
    edit: 'ペイロードを変えて再試行',
    editText: 'このペイロードの新しいジョブが、このジョブの代わりになります。',
    editAction: '投入',
    replaced: '新しいジョブを投入しました。',
    badJson: 'JSON ではありません。',
    payload: 'ペイロード',
    result: '結果',
    summary: '要約',
    traceback: 'トレースバック',
    facts: '詳細',
    kind: '種別',
    queue: 'キュー',
    user: 'ユーザー',
    priority: '優先度',
    made: '作成',
    due: '開始予定',
    ended: '終了',
    took: '所要時間',
    attempt: '試行',
    key: 'キー',
    definition: '定義',
    scheduledFor: '予定時刻',
    trigger: 'トリガー',
    replaces: '置換元',
    cost: 'コスト',
    estimated: (cost) => `${cost}(見積)`,
    labels: 'ラベル',
    policy: 'ポリシー',
    waitsFor: '待っている理由',
    artifacts: 'ファイルがまだ届いていません',
    run_at: 'まだ開始時刻ではありません',
    paused: 'キューが停止中です',
    limit: 'キューが上限に達しています',
    no_worker: '引き受けるワーカーがいません',
    workers_busy: 'ワーカーに空きがありません',
    draining: 'このキューのワーカーは新しいジョブを受け付けていません',
    quota: 'ユーザーの上限に達しています',
  },
)

export default function JobPage({ params }: { params: Record<string, string | undefined> }) {
  const id = params.id ?? ''
  const path = `/v1/jobs/${encodeURIComponent(id)}`
  const found = useRead<JobDetail>(path, LIVE_MS)
  return <Loaded of={found}>{(job) => <JobView key={job.job_id} job={job} />}</Loaded>
}

function JobView({ job }: { job: JobDetail }) {
  const ended = !ACTIVE.includes(job.state)
  const error = errorText(job)
  return (
    <>
      <div class="head">
        <h2>{w().title(shortId(job.job_id))}</h2>
        <Pill of={job} />
        <Actions job={job} />
      </div>
      <p class="line">
        <code>{job.job_id}</code>
        <Copy text={job.job_id} name={w().id} />
      </p>
      {error !== '' && <p class="trouble">{error}</p>}
      {job.waiting_for !== null && <Waiting reason={job.waiting_for} />}
      <Stepper job={job} />
      <Timeline runs={job.runs} />
      <div class="grid">
        <div class="stack">
          <Facts job={job} />
          <Once job={job} />
        </div>
        <div class="stack">
          {job.state === 'SUCCEEDED' && <Result jobId={job.job_id} />}
          {job.error?.traceback !== undefined && (
            <section class="card pad">
              <h3>{w().traceback}</h3>
              <Json value={job.error.traceback} name={w().traceback} />
            </section>
          )}
          <section class="card pad">
            <h3>{w().payload}</h3>
            <Json value={job.payload} name={w().payload} />
          </section>
          {job.callback !== null && <Callback job={job} callback={job.callback} />}
        </div>
      </div>
      <Logs jobId={job.job_id} runs={job.runs.length} ended={ended} />
      <Events jobId={job.job_id} runs={job.runs.length} />
      <Files jobId={job.job_id} ended={ended} />
      <CopyAs job={job} />
    </>
  )
}

function Actions({ job }: { job: JobDetail }) {
  const mayChange = useMayChange(job.user_id)
  const [shown, show] = useState<'cancel' | 'retry' | 'edit' | null>(null)
  if (!mayChange) return <span />
  const active = ACTIVE.includes(job.state)
  const close = () => show(null)
  const act = async (work: Promise<unknown>, done: string) => {
    await work
    notify(done)
    void readAgain()
  }
  return (
    <span class="line">
      {active && job.cancel_requested_at === null && (
        <button type="button" class="danger" onClick={() => show('cancel')}>
          {w().cancel}
        </button>
      )}
      {!active && job.state !== 'SUCCEEDED' && (
        <>
          <button type="button" class="main" onClick={() => show('retry')}>
            {w().retry}
          </button>
          <button type="button" class="quiet" onClick={() => show('edit')}>
            {w().edit}
          </button>
        </>
      )}
      {shown === 'cancel' && (
        <ActionDialog
          title={w().cancelTitle}
          action={w().cancel}
          danger
          run={() => act(client.job(job.job_id).cancel(), w().canceled)}
          onClose={close}
        >
          <p>{job.state === 'RUNNING' ? w().cancelRunning : w().cancelWaiting}</p>
        </ActionDialog>
      )}
      {shown === 'retry' && (
        <ActionDialog
          title={w().retryTitle}
          action={w().retry}
          run={() => act(client.job(job.job_id).retry(), w().retried)}
          onClose={close}
        >
          <p>{w().retryText}</p>
        </ActionDialog>
      )}
      {shown === 'edit' && <EditPayload job={job} act={act} onClose={close} />}
    </span>
  )
}

interface EditProps {
  job: JobDetail
  act(work: Promise<unknown>, done: string): Promise<void>
  onClose(): void
}

function EditPayload({ job, act, onClose }: EditProps) {
  const [text, setText] = useState(() => JSON.stringify(job.payload, null, 2))
  const payload = parse(text)
  const [, navigate] = useLocation()
  const replace = async () => {
    const next = await client.job(job.job_id).retry({ payload })
    navigate(`/jobs/${next.id}`)
  }
  return (
    <ActionDialog
      title={w().edit}
      action={w().editAction}
      ready={payload !== undefined}
      run={() => act(replace(), w().replaced)}
      onClose={onClose}
    >
      <p>{w().editText}</p>
      <label class="field">
        <span>{w().payload}</span>
        <textarea value={text} spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {payload === undefined && (
        <p class="problem" role="alert">
          {w().badJson}
        </p>
      )}
    </ActionDialog>
  )
}

/** Undefined if the text is not JSON. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

function Waiting({ reason: { reason, message, command } }: { reason: WaitingForShape }) {
  return (
    <section class="card pad" aria-label={w().waitsFor}>
      <h3>{w().waitsFor}</h3>
      <p>
        <b>{w()[reason]}</b>
      </p>
      <p lang="en">{message}</p>
      {command !== undefined && <Command text={commandLine(command.replace(/^ichido /, ''))} />}
    </section>
  )
}

function Facts({ job }: { job: JobDetail }) {
  const mayReadAll = useCan('readAll')
  const rows: [string, preact.ComponentChildren][] = [
    [w().kind, <Link href={`/jobs?kind=${encodeURIComponent(job.kind)}`}>{job.kind}</Link>],
    [w().queue, <Link href={`/jobs?queue=${encodeURIComponent(job.queue)}`}>{job.queue}</Link>],
    [w().user, job.user_id],
    [w().priority, job.priority],
    [w().attempt, job.attempt],
    [w().made, <Instant of={job.created_at} />],
    [w().due, <Instant of={job.run_at} />],
    [w().ended, job.finished_at && <Instant of={job.finished_at} />],
    [w().took, <Span from={job.started_at} to={job.finished_at} />],
    [w().key, job.idempotency_key],
    [
      w().definition,
      job.definition !== null && mayReadAll ? (
        <Link href={`/schedules/${encodeURIComponent(job.definition)}`}>{job.definition}</Link>
      ) : (
        job.definition
      ),
    ],
    [w().scheduledFor, job.scheduled_for && <Instant of={job.scheduled_for} />],
    [w().trigger, job.trigger_id],
    [
      w().replaces,
      job.replaces_job_id && <Link href={`/jobs/${job.replaces_job_id}`}>{shortId(job.replaces_job_id)}</Link>,
    ],
    [w().cost, job.estimated_cost > 0 && w().estimated(formatNumber(job.estimated_cost))],
    [
      w().labels,
      Object.entries(job.labels)
        .map(([name, value]) => `${name}:${value}`)
        .join(', '),
    ],
  ]
  return (
    <section class="card pad">
      <h3>{w().facts}</h3>
      <dl class="facts">
        {rows
          .filter(([, value]) => value !== null && value !== '' && value !== false)
          .map(([name, value]) => (
            <>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
      </dl>
      <details>
        <summary>{w().policy}</summary>
        <Json value={job.policy} name={w().policy} />
      </details>
    </section>
  )
}

function Result({ jobId }: { jobId: string }) {
  const found = useRead<ResultShape>(`/v1/jobs/${jobId}/result`, false)
  return (
    <section class="card pad">
      <h3>{w().result}</h3>
      <Loaded of={found}>
        {({ result, summary_text, cost }) => (
          <>
            {summary_text !== null && <Json value={summary_text} name={w().summary} />}
            <Json value={result} name={w().result} />
            {cost !== null && (
              <p class="note">
                {w().cost}: {formatNumber(cost)}
              </p>
            )}
          </>
        )}
      </Loaded>
    </section>
  )
}
