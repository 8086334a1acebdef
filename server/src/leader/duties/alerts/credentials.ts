import { findEndingTokens } from '../../../store/access/ending-tokens.ts'
import { readClock } from '../../../store/system/leadership.ts'
import { compare, type Rule } from './look.ts'

const DAY_MS = 24 * 3_600_000
/** Of so many tokens, those that end first. */
const TOKENS_MAX = 1_000

export const lookAtCredentials: Rule = async ({ store, settings, certificateEndsAtMs }) => {
  const withinMs = settings.get('alert_credential_ending_threshold_days') * DAY_MS
  const ending = new Map<string, string>()
  for (const token of await store.read(findEndingTokens(Math.ceil(withinMs), TOKENS_MAX))) {
    const ends = `ends at ${new Date(token.endsAtMs).toISOString()}`
    if (token.of === 'user') {
      const message = `The API token ${JSON.stringify(token.name)} of ${token.owner} ${ends}. Make a new one: ichido token create`
      ending.set(`token ${token.id}`, message)
    } else {
      const message = `The token of the worker ${JSON.stringify(token.name)} ${ends}, and the worker does not renew it. Enroll it again: ichido workers enroll`
      ending.set(`worker ${token.id}`, message)
    }
  }
  if (certificateEndsAtMs !== undefined && certificateEndsAtMs - (await store.read(readClock())) < withinMs) {
    const message = `The certificate of TLS_CERT_FILE ends at ${new Date(certificateEndsAtMs).toISOString()}. Replace the file, and restart the node`
    ending.set('certificate', message)
  }
  return compare(store, 'credential_ending', ending)
}
