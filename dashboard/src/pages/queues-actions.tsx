import { DEFAULT_CONTINUATION_SECONDS, DEFAULT_LEASE_TTL_SECONDS, type QueueShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { words } from '../words.ts'

const w = words(
  {
    pauseTitle: (name: string) => `Pause the queue ${name}`,
    resumeTitle: (name: string) => `Resume the queue ${name}`,
    willPause:
      'Workers get no more jobs from this queue. Jobs that workers hold continue. New jobs are accepted and wait.',
    willResume: 'Workers get the waiting jobs of this queue again.',
    pause: 'Pause',
    resume: 'Resume',
    paused: (name: string) => `The queue ${name} is paused.`,
    resumed: (name: string) => `The queue ${name} continues.`,
    limitsTitle: (name: string) => `Change the queue ${name}`,
    willChange: 'The limit holds for the next lease. The times hold for jobs that do not set their own.',
    max_concurrent: 'Jobs that workers may hold at a time (empty: no limit)',
    lease_ttl_seconds: `Lease, in seconds (empty: ${DEFAULT_LEASE_TTL_SECONDS})`,
    continuation_seconds: `Continuation time, in seconds (empty: ${DEFAULT_CONTINUATION_SECONDS})`,
    result_ttl_seconds: 'Results can be read for, in seconds (empty: as long as the job is kept)',
    save: 'Save',
    saved: (name: string) => `The queue ${name} is changed.`,
  },
  {
    pauseTitle: (name) => `キュー ${name} を停止`,
    resumeTitle: (name) => `キュー ${name} を再開`,
    willPause:
      'ワーカーはこのキューから新しいジョブを受け取りません。保持中のジョブは続きます。新しいジョブは受け付けられ、待機します。',
    willResume: 'ワーカーはこのキューで待っているジョブを再び受け取ります。',
    pause: '停止',
    resume: '再開',
    paused: (name) => `キュー ${name} を停止しました。`,
    resumed: (name) => `キュー ${name} を再開しました。`,
    limitsTitle: (name) => `キュー ${name} を変更`,
    willChange: '上限は次の割り当てから有効です。時間は、自分で指定しないジョブに適用されます。',
    max_concurrent: '同時に保持できるジョブ数(空欄: 上限なし)',
    lease_ttl_seconds: `リース時間(秒、空欄: ${DEFAULT_LEASE_TTL_SECONDS})`,
    continuation_seconds: `継続時間(秒、空欄: ${DEFAULT_CONTINUATION_SECONDS})`,
    result_ttl_seconds: '結果を読める時間(秒、空欄: ジョブが残る間)',
    save: '保存',
    saved: (name) => `キュー ${name} を変更しました。`,
  },
)

interface QueueDialogProps {
  queue: QueueShape
  onClose(): void
}

async function put({ name }: QueueShape, changes: Partial<QueueShape>, done: string): Promise<void> {
  await send('PUT', `/v1/queues/${encodeURIComponent(name)}`, changes)
  notify(done)
  void readAgain()
}

export function PauseDialog({ queue, onClose }: QueueDialogProps) {
  const { name, paused } = queue
  return (
    <ActionDialog
      title={paused ? w().resumeTitle(name) : w().pauseTitle(name)}
      action={paused ? w().resume : w().pause}
      run={() => put(queue, { paused: !paused }, paused ? w().resumed(name) : w().paused(name))}
      onClose={onClose}
    >
      <p>{paused ? w().willResume : w().willPause}</p>
    </ActionDialog>
  )
}

const FIELDS = ['max_concurrent', 'lease_ttl_seconds', 'continuation_seconds', 'result_ttl_seconds'] as const

/** Sends only the changed fields, so that a change of another operator stays. */
export function LimitsDialog({ queue, onClose }: QueueDialogProps) {
  const [typed, type] = useState<Partial<Record<(typeof FIELDS)[number], string>>>({})
  const entries = Object.entries(typed).map(([field, text]) => [field, text === '' ? null : Number(text)])
  return (
    <ActionDialog
      title={w().limitsTitle(queue.name)}
      action={w().save}
      ready={entries.length > 0}
      run={() => put(queue, Object.fromEntries(entries), w().saved(queue.name))}
      onClose={onClose}
    >
      <p>{w().willChange}</p>
      {FIELDS.map((field) => (
        <label key={field} class="field">
          <span>{w()[field]}</span>
          <input
            type="number"
            step="1"
            value={typed[field] ?? queue[field] ?? ''}
            onInput={(event) => type({ ...typed, [field]: event.currentTarget.value })}
          />
        </label>
      ))}
    </ActionDialog>
  )
}
