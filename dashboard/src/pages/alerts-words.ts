import type { AlertRule, SeriesPointShape } from '@ichido/sdk/protocol'
import { withQuery } from '../server/call.ts'
import { words } from '../words.ts'

/** The name of each rule. A rule of a newer server is shown by its own name. */
export const ruleWords = words(
  {
    schedule_overdue: 'Schedule overdue',
    loop_late: 'Loop of the leader is late',
    dead_letters: 'Many dead letters',
    retry_failures: 'Retries fail',
    duplicate_keys: 'Keys are repeated',
    start_delay: 'Runs start late',
    queue_unserved: 'Queue without workers',
    oldest_waiting: 'A run waits too long',
    leader_changes: 'The leader changes often',
    disk_nearly_full: 'Disk nearly full',
    credential_ending: 'A credential ends soon',
    store_full: 'Disk full',
  },
  {
    schedule_overdue: 'スケジュールの遅れ',
    loop_late: 'リーダーの処理の遅れ',
    dead_letters: 'デッドレターの増加',
    retry_failures: '再試行の失敗',
    duplicate_keys: 'キーの重複',
    start_delay: '開始の遅れ',
    queue_unserved: 'ワーカーのいないキュー',
    oldest_waiting: '長く待つ実行',
    leader_changes: 'リーダーの頻繁な交代',
    disk_nearly_full: 'ディスク残量の不足',
    credential_ending: '認証情報の期限',
    store_full: 'ディスクの満杯',
  },
)

/** The advice for each rule. */
export const adviceWords = words(
  {
    schedule_overdue: 'Check that a node leads, then open the schedule.',
    loop_late: 'Check the store and the log of the leader.',
    dead_letters: 'Find the error that most of them share, mend its cause, and redrive them.',
    retry_failures: 'Retrying does not help. Read the errors of the failed jobs.',
    duplicate_keys: 'A client sends its requests again. Find the client.',
    start_delay: 'Start more workers, or raise the limits of the queues.',
    queue_unserved: 'Start a worker for this queue, or pause the queue.',
    oldest_waiting: 'Start more workers, or raise the limit of this queue.',
    leader_changes: 'Nodes restart, or the database answers too slowly.',
    disk_nearly_full: 'Free space, or shorten the retention times.',
    credential_ending: 'Make a new token or certificate before this one ends.',
    store_full: 'Free space. The server accepts no jobs until then.',
  },
  {
    schedule_overdue: 'リーダーがいることを確かめ、スケジュールを開いてください。',
    loop_late: 'ストアとリーダーのログを確認してください。',
    dead_letters: '共通するエラーの原因を直し、再投入してください。',
    retry_failures: '再試行では解決しません。失敗したジョブのエラーを確認してください。',
    duplicate_keys: 'クライアントが要求を再送しています。そのクライアントを探してください。',
    start_delay: 'ワーカーを増やすか、キューの上限を上げてください。',
    queue_unserved: 'このキューのワーカーを起動するか、キューを停止してください。',
    oldest_waiting: 'ワーカーを増やすか、このキューの上限を上げてください。',
    leader_changes: 'ノードの再起動か、データベースの応答の遅れが原因です。',
    disk_nearly_full: '空きを作るか、保持期間を短くしてください。',
    credential_ending: '期限の前に新しいトークンまたは証明書を用意してください。',
    store_full: '空きを作ってください。それまでジョブを受け付けません。',
  },
)

/** The page on which one acts. */
export function placeOf(rule: AlertRule, subject: string): string {
  switch (rule) {
    case 'schedule_overdue':
      return `/schedules/${encodeURIComponent(subject)}`
    case 'dead_letters':
      return '/dead-letters'
    case 'retry_failures':
      return '/jobs?state=FAILED'
    case 'duplicate_keys':
      return '/keys'
    case 'start_delay':
      return '/queues'
    case 'queue_unserved':
      return '/workers'
    case 'oldest_waiting':
      return withQuery('/jobs', { queue: subject, state: 'PENDING' })
    case 'credential_ending':
      return subject.startsWith('worker ') ? '/workers' : '/tokens'
    case 'disk_nearly_full':
    case 'store_full':
      return '/settings?q=retention'
    default:
      return '/system'
  }
}

interface Figure {
  of(point: SeriesPointShape): number | null
  unit: 'count' | 'ms'
  word: 'deadLettered' | 'failed' | 'keyHits' | 'wait' | 'oldest'
  /** The figure of the alert's own queue. */
  ofQueue?: boolean
  /** The leader measures it, and may have missed a step. */
  measured?: boolean
}

const OLDEST: Figure = {
  of: ({ oldest_waiting_seconds: seconds }) => (seconds === null ? null : seconds * 1_000),
  unit: 'ms',
  word: 'oldest',
  ofQueue: true,
  measured: true,
}

/** The series that shows the problem. The server keeps none for the other rules. */
export const FIGURES: Partial<Record<AlertRule, Figure>> = {
  dead_letters: { of: ({ dead_lettered }) => dead_lettered, unit: 'count', word: 'deadLettered' },
  retry_failures: { of: ({ failed, timed_out }) => failed + timed_out, unit: 'count', word: 'failed' },
  duplicate_keys: { of: ({ key_hits }) => key_hits, unit: 'count', word: 'keyHits' },
  start_delay: { of: ({ wait_ms }) => wait_ms.p50, unit: 'ms', word: 'wait' },
  queue_unserved: OLDEST,
  oldest_waiting: OLDEST,
}
