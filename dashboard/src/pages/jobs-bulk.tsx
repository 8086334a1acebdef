import type { JobState, OperationDryRun, OperationShape, Page } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { messageOf } from '../parts/loaded.tsx'
import { stateWord } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain, useRead } from '../server/queries.ts'
import { formatNumber, words } from '../words.ts'

const w = words(
  {
    cancel: (count: string) => `Cancel ${count} ${count === '1' ? 'job' : 'jobs'}`,
    retry: (count: string) => `Retry ${count} ${count === '1' ? 'job' : 'jobs'}`,
    redrive: (count: string) => `Redrive ${count} ${count === '1' ? 'dead letter' : 'dead letters'}`,
    ofThem: (title: string, count: string) => `${title}, ${count} of them running`,
    counting: 'Counting…',
    willCancel: 'Waiting jobs end at once. Running jobs are asked to stop, and end when they have stopped.',
    willRetry: 'Each job that ended without success gets another run and a full retry budget. Other jobs are skipped.',
    willRedrive:
      'Each dead letter gets another run and a full retry budget. It waits if the quota is full. Other jobs are skipped.',
    ofState: (count: string, state: string) => `${count} ${state.toLowerCase()}`,
    none: 'No job would change.',
    begun: 'The operation has begun.',
    start: 'Start',
    operations: 'Operations at work',
    canceling: 'Canceling',
    retrying: 'Retrying',
    redriving: 'Redriving',
    progress: (done: string, matched: string) => `${done} of ${matched}`,
    abort: 'Abort',
  },
  {
    cancel: (count) => `${count} 件のジョブを取り消す`,
    retry: (count) => `${count} 件のジョブを再試行する`,
    redrive: (count) => `${count} 件のデッドレターを再投入する`,
    ofThem: (title, count) => `${title}(うち実行中 ${count} 件)`,
    counting: '数えています…',
    willCancel: '待機中のジョブはすぐに終わります。実行中のジョブには停止を求め、止まった時点で終わります。',
    willRetry: '成功せずに終わったジョブがもう一度実行されます。再試行回数は最初からです。他のジョブは対象外です。',
    willRedrive:
      '各デッドレターがもう一度実行され、再試行回数は最初からになります。上限に達していれば空きを待ちます。他のジョブは対象外です。',
    ofState: (count, state) => `${state} ${count} 件`,
    none: '変わるジョブはありません。',
    begun: '操作を始めました。',
    start: '開始',
    operations: '実行中の操作',
    canceling: '取消中',
    retrying: '再試行中',
    redriving: '再投入中',
    progress: (done, matched) => `${matched} 件中 ${done} 件`,
    abort: '中止',
  },
)

export type BulkAction = 'cancel' | 'retry' | 'redrive'
/** The jobs of an operation: those with these ids, or all that match. */
export type Choice = { jobIds: readonly string[] } | { filter: object }

interface BulkDialogProps {
  action: BulkAction
  choice: Choice
  onDone(): void
  onClose(): void
}

/** Says what an operation on many jobs will do, and begins it. */
export function BulkDialog({ action, choice, onDone, onClose }: BulkDialogProps) {
  const request = { action, ...('jobIds' in choice ? { job_ids: choice.jobIds } : { filter: choice.filter }) }
  const { data, error } = useQuery({
    queryKey: ['dry-run', request],
    queryFn: () => send<OperationDryRun>('POST', '/v1/operations', { ...request, dry_run: true }),
    staleTime: 0,
    gcTime: 0,
  })
  const count = data === undefined ? '…' : `${formatNumber(data.matched)}${data.capped ? '+' : ''}`
  const states = Object.entries(data?.by_state ?? {}).flatMap(([state, found]) =>
    found === undefined || found.count === 0 ? [] : [{ state: state as JobState, count: found.count }],
  )
  const running = (data?.by_state.RUNNING?.count ?? 0) + (data?.by_state.ASSIGNED?.count ?? 0)
  const title = running === 0 ? w()[action](count) : w().ofThem(w()[action](count), formatNumber(running))
  const text = { cancel: w().willCancel, retry: w().willRetry, redrive: w().willRedrive }[action]
  const begin = async () => {
    await send('POST', '/v1/operations', request)
    notify(w().begun)
    void readAgain()
    onDone()
  }
  return (
    <ActionDialog
      title={title}
      action={w().start}
      danger={action === 'cancel'}
      ready={(data?.matched ?? 0) > 0}
      run={begin}
      onClose={onClose}
    >
      {data === undefined && error === null && <p role="status">{w().counting}</p>}
      {error !== null && (
        <p class="problem" role="alert">
          {messageOf(error)}
        </p>
      )}
      {data !== undefined && (data.matched === 0 ? <p>{w().none}</p> : <p>{text}</p>)}
      {states.length > 0 && (
        <ul>
          {states.map(({ state, count }) => (
            <li key={state}>{w().ofState(formatNumber(count), stateWord(state))}</li>
          ))}
        </ul>
      )}
    </ActionDialog>
  )
}

/** The operations that run now, with their progress. */
export function Operations() {
  const { data } = useRead<Page<OperationShape>>('/v1/operations?limit=20')
  const running = data?.data.filter(({ state }) => state === 'running') ?? []
  if (running.length === 0) return null
  const abort = async (id: string) => {
    await send('POST', `/v1/operations/${id}/abort`)
    void readAgain()
  }
  return (
    <section class="card pad" aria-label={w().operations}>
      {running.map(({ operation_id, action, done, skipped, refused, matched }) => {
        const past = done + skipped + refused
        const name = { cancel: w().canceling, retry: w().retrying, redrive: w().redriving }[action]
        return (
          <div key={operation_id} class="line">
            <span>
              {name}: {w().progress(formatNumber(past), formatNumber(matched))}
            </span>
            <progress class="bar" max={Math.max(1, matched)} value={past} aria-label={name} />
            <button type="button" class="quiet" onClick={() => void abort(operation_id)}>
              {w().abort}
            </button>
          </div>
        )
      })}
    </section>
  )
}
