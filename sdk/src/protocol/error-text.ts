import type { JobState } from './jobs.ts'

interface Told {
  code: string
  message: string
}

/** The text of an error, with its code only once: some messages begin with the code, and some errors have only a code. */
export function errorText({ code, message }: Told): string {
  return message === code || message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}

/** Why a job or run ended in this state; null if the state needs no reason, like CANCELED. */
export function reasonText(state: JobState, error: Told | null): string | null {
  if (error === null || (state === 'CANCELED' && error.code === state)) return null
  if (error.code !== state) return errorText(error)
  return error.message === error.code ? null : error.message
}

/** The sentence after a job's name that says how it ended without a result. */
export function endText(state: JobState, error: Told | null): string {
  const reason = reasonText(state, error)
  const end = state === 'CANCELED' ? 'was canceled' : `ended ${state}`
  return reason === null ? end : `${end}: ${reason}`
}
