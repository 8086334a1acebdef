import type { JobState } from './jobs.ts'

interface Told {
  code: string
  message: string
}

/** Messages of systems often begin with their code, and some errors have no message but their code: it is said once. */
export function errorText({ code, message }: Told): string {
  return message === code || message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}

/** Why a job or run ended in this state; null when the state says it all, as CANCELED does. */
export function reasonText(state: JobState, error: Told | null): string | null {
  if (error === null || (state === 'CANCELED' && error.code === state)) return null
  if (error.code !== state) return errorText(error)
  return error.message === error.code ? null : error.message
}

/** How a job without a result ended, after its name. */
export function endText(state: JobState, error: Told | null): string {
  const reason = reasonText(state, error)
  const end = state === 'CANCELED' ? 'was canceled' : `ended ${state}`
  return reason === null ? end : `${end}: ${reason}`
}
