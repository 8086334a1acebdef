import { isSettingName, SETTINGS, type SettingName, settingProblem } from '../core/settings.ts'
import { readSettings } from '../store/commands/access.ts'
import type { Store } from '../store/port.ts'

/** What is in force now, on this node; asked anew whenever it matters, so that a change needs no restart. */
export interface Settings {
  get(name: SettingName): number
}

/** Values of the environment, checked already; they beat what is stored. */
export type FixedSettings = Partial<Record<SettingName, number>>

export interface SettingsService extends Settings {
  /** Reads what is stored: before the node serves, when a change was made, and now and then. */
  refresh(): Promise<void>
}

export function createSettingsService({ store }: { store: Store }, fixed: FixedSettings = {}): SettingsService {
  let stored: FixedSettings = {}
  return {
    async refresh() {
      const found = await store.read(readSettings())
      stored = Object.fromEntries(
        // A newer node may have stored what this one would not allow, or does not know.
        [...found].filter(([name, value]) => isSettingName(name) && settingProblem(name, value) === null),
      )
    },
    get: (name) => fixed[name] ?? stored[name] ?? SETTINGS[name].default,
  }
}

/** The defaults, for whoever has no node. */
export const defaultSettings: Settings = { get: (name) => SETTINGS[name].default }
