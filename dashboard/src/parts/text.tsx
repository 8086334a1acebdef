import type { JobState, RunErrorShape } from '@ichido/sdk/protocol'
import { signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { BASE_URL } from '../server/call.ts'
import { formatInstant, words } from '../words.ts'

const w = words(
  {
    PENDING: 'Pending',
    ASSIGNED: 'Assigned',
    RUNNING: 'Running',
    ORPHANED: 'Orphaned',
    SUCCEEDED: 'Succeeded',
    FAILED: 'Failed',
    TIMED_OUT: 'Timed out',
    CANCELED: 'Canceled',
    canceling: 'Canceling',
    now: 'now',
    copy: 'Copy',
    copied: 'Copied',
    copyNamed: (name: string) => `Copy ${name}`,
    ms: 'ms',
    s: 's',
    min: 'min',
    h: 'h',
    d: 'd',
  },
  {
    PENDING: '待機中',
    ASSIGNED: '割当済み',
    RUNNING: '実行中',
    ORPHANED: '孤立',
    SUCCEEDED: '成功',
    FAILED: '失敗',
    TIMED_OUT: '時間切れ',
    CANCELED: '取消済み',
    canceling: '取消中',
    now: '今',
    copy: 'コピー',
    copied: 'コピー済み',
    copyNamed: (name) => `${name}をコピー`,
    ms: 'ミリ秒',
    s: '秒',
    min: '分',
    h: '時間',
    d: '日',
  },
)

export const stateWord = (state: JobState): string => w()[state]

/** The time in an id, which leads to the job, and enough of the random part; the command line and `short_id` of the API take it. */
export const shortId = (id: string): string => `${id.slice(0, 13)}…${id.slice(-4)}`

/** Jobs that can still be canceled. */
export const ACTIVE: readonly JobState[] = ['PENDING', 'ASSIGNED', 'RUNNING', 'ORPHANED']

interface Stateful {
  state: JobState
  cancel_requested_at?: string | null
}

export function Pill({ of: { state, cancel_requested_at = null } }: { of: Stateful }) {
  const canceling = cancel_requested_at !== null && ACTIVE.includes(state)
  return (
    <span class="pill" data-state={state}>
      {canceling ? w().canceling : stateWord(state)}
    </span>
  )
}

/** Ticks once a second for all ages on the page. */
export const nowMs = signal(Date.now())
setInterval(() => {
  nowMs.value = Date.now()
}, 1_000)

/** The two largest units of a duration, or only the largest one. */
export function formatDuration(ms: number, units = 2): string {
  const seconds = Math.floor(ms / 1_000)
  if (seconds < 1) return `${Math.max(0, Math.round(ms))} ${w().ms}`
  const parts: [number, string][] = [
    [Math.floor(seconds / 86_400), w().d],
    [Math.floor((seconds % 86_400) / 3_600), w().h],
    [Math.floor((seconds % 3_600) / 60), w().min],
    [seconds % 60, w().s],
  ]
  const first = parts.findIndex(([count]) => count > 0)
  return parts
    .slice(first, first + units)
    .filter(([count], i) => i === 0 || count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(' ')
}

/** The time since an instant; it grows while one looks at it. */
export function Age({ of }: { of: string | null }) {
  if (of === null) return <>–</>
  const ms = Math.max(0, nowMs.value - Date.parse(of))
  return (
    <time dateTime={of} title={formatInstant(of)}>
      {ms < 1_000 ? w().now : formatDuration(ms, 1)}
    </time>
  )
}

/** The time between two instants, or until now. */
export function Span({ from, to }: { from: string | null; to: string | null }) {
  if (from === null) return <>–</>
  const endMs = to === null ? Math.max(nowMs.value, Date.parse(from)) : Date.parse(to)
  return <span title={formatInstant(from)}>{formatDuration(endMs - Date.parse(from))}</span>
}

export function Instant({ of }: { of: string | null }) {
  return of === null ? <>–</> : <time dateTime={of}>{formatInstant(of)}</time>
}

/** Why a job or run ended; empty if the state says it. A code at the start of the message is not repeated. */
export function errorText({ state, error }: { state: JobState; error: RunErrorShape | null }): string {
  if (error === null || (state === 'CANCELED' && error.code === state)) return ''
  const { code, message } = error
  return message === code || message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}

const COPIED_MS = 1_500

export function Copy({ text, name }: { text: string; name: string }) {
  const [copied, setCopied] = useState(false)
  const copy = async () => {
    await writeClipboard(text)
    setCopied(true)
    setTimeout(() => setCopied(false), COPIED_MS)
  }
  return (
    <button type="button" class="quiet" aria-label={w().copyNamed(name)} onClick={copy}>
      {copied ? w().copied : w().copy}
    </button>
  )
}

async function writeClipboard(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    // Only secure pages may write to the clipboard. On other pages the selected text can be copied.
    const area = document.createElement('textarea')
    area.value = text
    area.className = 'unseen'
    document.body.append(area)
    area.select()
    document.execCommand('copy')
    area.remove()
  }
}

/** A command to paste into a shell, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <p class="command">
      <code>{text}</code>
      <Copy text={text} name={text} />
    </p>
  )
}

/** The command line in a clone. */
export const IN_CLONE = 'npm run -s ichido --'
/** The default server of the command line. */
const DEFAULT_URLS = ['http://127.0.0.1:8001', 'http://localhost:8001']

/** A command line for the server of this page. */
export function commandLine(rest: string): string {
  const word = /^[\w@%+=:,./-]+$/.test(BASE_URL) ? BASE_URL : `'${BASE_URL.replaceAll("'", '%27')}'`
  return `${DEFAULT_URLS.includes(BASE_URL) ? '' : `ICHIDO_URL=${word} `}${IN_CLONE} ${rest}`
}

/** A value of a job as text, never as markup. */
export function Json({ value, name }: { value: unknown; name: string }) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2)
  // Keyboards can scroll a region only if it takes the focus.
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a long text is scrolled with the arrow keys
    <section class="scroll" tabIndex={0} aria-label={name}>
      <pre>{text}</pre>
    </section>
  )
}
