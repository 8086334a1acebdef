import { IchidoError } from '@ichido/sdk/protocol'
import type { SettingName } from '../../core/limits/settings.ts'
import type { Deps } from '../deps.ts'

interface Reached {
  setting: SettingName
  /** A whole sentence but for its full stop: who has how many of what. */
  says(max: number): string
  /** What the caller can do about it, beside asking for a higher maximum. */
  advice: string
  /** Only of rates, and of what ends soon by itself: it is answered 429, and clients come again by themselves. */
  retryAfterMs?: number
}

/** The refusal of a request that would pass a maximum. It is counted by the setting's name. */
export function maximumReached(
  { settings, meter }: Pick<Deps, 'settings' | 'meter'>,
  { setting, says, advice, retryAfterMs }: Reached,
): IchidoError {
  meter.maximumReached(setting)
  const max = settings.get(setting)
  const message = maximumText(setting, says(max), advice)
  const code = retryAfterMs === undefined ? 'MAXIMUM_REACHED' : 'RATE_LIMITED'
  return new IchidoError(code, message, { setting, max }, { retryAfterMs })
}

export function maximumText(setting: SettingName, says: string, advice: string): string {
  return `${says}; ${advice}, or have an admin raise the setting ${setting}`
}
