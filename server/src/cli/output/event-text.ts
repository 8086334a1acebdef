import type { JobEvent } from '@ichido/sdk/client'
import { lineForTerminal } from '@ichido/sdk/terminal'
import { clip } from '../../core/json/text.ts'

const PROGRESS_MAX = 80

/** What a lifecycle event says; null for what a worker published. */
export function moveOf({ stage, data }: JobEvent): { state: string; attempt: number } | null {
  if (stage !== 'run' || typeof data !== 'object' || data === null || !('state' in data)) return null
  return { state: String(data.state), attempt: 'attempt' in data ? Number(data.attempt) : 0 }
}

/** The state, and which attempt it is. */
export function stateOf(event: JobEvent): string | null {
  const move = moveOf(event)
  return move && `${move.state}${move.attempt > 0 ? ` attempt ${move.attempt}` : ''}`
}

/** What a worker published, in one line: `{percent, message}` is common enough to be shown as words. */
export function progressOf({ stage, data }: JobEvent): string {
  const parts = stage === 'progress' ? [] : [stage]
  if (typeof data === 'object' && data !== null && ('percent' in data || 'message' in data)) {
    if ('percent' in data) parts.push(`${data.percent} %`)
    if ('message' in data) parts.push(String(data.message))
  } else parts.push(JSON.stringify(data))
  return clip(lineForTerminal(parts.join(' ')), PROGRESS_MAX)
}
