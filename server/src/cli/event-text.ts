import type { JobEvent } from '@ichido/sdk/client'

const CLIP = 80

/** What a lifecycle event says: the state, and which attempt it is; null for what a worker published. */
export function stateOf({ stage, data }: JobEvent): string | null {
  if (stage !== 'run' || typeof data !== 'object' || data === null || !('state' in data)) return null
  const attempt = 'attempt' in data && Number(data.attempt) > 0 ? ` attempt ${data.attempt}` : ''
  return `${data.state}${attempt}`
}

/** What a worker published, in one line: `{percent, message}` is common enough to be shown as words. */
export function progressOf({ stage, data }: JobEvent): string {
  const parts = stage === 'progress' ? [] : [stage]
  if (typeof data === 'object' && data !== null && ('percent' in data || 'message' in data)) {
    if ('percent' in data) parts.push(`${data.percent} %`)
    if ('message' in data) parts.push(String(data.message))
  } else parts.push(JSON.stringify(data))
  const text = parts.join(' ').replace(/\p{Cc}+/gu, ' ')
  return text.length > CLIP ? `${text.slice(0, CLIP - 1)}…` : text
}
