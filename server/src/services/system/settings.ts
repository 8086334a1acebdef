import { IchidoError, type SettingShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Bus } from '../../bus/port.ts'
import { nearest } from '../../core/json/text.ts'
import type { Caller } from '../../core/limits/roles.ts'
import {
  type FixedSettings,
  isSettingName,
  SETTING_NAMES,
  SETTINGS,
  type SettingName,
  settingProblem,
  settingVariable,
} from '../../core/limits/settings.ts'
import type { Store } from '../../store/port.ts'
import { changeSetting, findSettings, type StoredSetting } from '../../store/system/settings.ts'
import { isoOrNull, requireAbility } from '../answers.ts'

/** The values in force on this node. Read them whenever they are needed, so that a change needs no restart. */
export interface Settings {
  get(name: SettingName): number
}

export interface SettingsService extends Settings {
  /** Reads the stored values: at the start of the node, after a change, and at intervals. */
  refresh(): Promise<void>
  /** The callback runs after every change of a value on this node. */
  onChange(callback: () => void): void
  list(): Promise<SettingShape[]>
  show(name: string): Promise<SettingShape>
  put(caller: Caller, name: string, value: number): Promise<SettingShape>
  /** Back to the default. */
  reset(caller: Caller, name: string): Promise<SettingShape>
}

export function createSettingsService(
  { world, store, bus }: { world: Pick<World, 'uuid'>; store: Store; bus: Pick<Bus, 'wake'> },
  fixed: FixedSettings = {},
): SettingsService {
  const callbacks: (() => void)[] = []
  let stored: FixedSettings = {}
  let asked = 0
  let answered = 0

  async function refresh(): Promise<void> {
    const turn = ++asked
    const found = await store.read(findSettings())
    // A later read has already answered.
    if (turn < answered) return
    answered = turn
    const before = stored
    stored = inForce(found)
    if (SETTING_NAMES.some((name) => before[name] !== stored[name])) for (const callback of callbacks) callback()
  }

  async function change(caller: Caller, name: SettingName, value: number | null): Promise<SettingShape> {
    if (name in fixed) {
      const variable = settingVariable(name)
      const message = `${name} is fixed by the environment of this node: ${variable}=${fixed[name]}`
      throw new IchidoError('SETTING_FIXED', message, { name, variable })
    }
    await store.write(changeSetting(name, value, { id: world.uuid(), actor: caller.userId }))
    bus.wake(['settings'])
    await refresh()
    return show(name)
  }

  async function list(): Promise<SettingShape[]> {
    const found = await store.read(findSettings())
    return SETTING_NAMES.map((name) => render(name, fixed, found))
  }

  async function show(name: string): Promise<SettingShape> {
    return render(known(name), fixed, await store.read(findSettings()))
  }

  return {
    refresh,
    onChange: (callback) => void callbacks.push(callback),
    get: (name) => fixed[name] ?? stored[name] ?? SETTINGS[name].default,
    list,
    show,
    async put(caller, name, value) {
      requireAbility(caller, 'administer')
      const setting = known(name)
      const problem = settingProblem(setting, value)
      if (problem === null) return change(caller, setting, value)
      const { min, max } = SETTINGS[setting]
      throw new IchidoError('INVALID_PAYLOAD', `${name} ${problem}`, { field: 'value', name, min, max })
    },
    async reset(caller, name) {
      requireAbility(caller, 'administer')
      return change(caller, known(name), null)
    },
  }
}

/** The defaults, for code without a node. */
export const defaultSettings: Settings = { get: (name) => SETTINGS[name].default }

function known(name: string): SettingName {
  if (isSettingName(name)) return name
  const near = nearest(name, SETTING_NAMES)
  const message = `There is no setting ${name}${near === undefined ? '' : `; the nearest is ${near}`}`
  throw new IchidoError('NOT_FOUND', message, { names: SETTING_NAMES })
}

/** A newer node may have stored a value that this one does not allow or know. */
function inForce(found: readonly StoredSetting[]): FixedSettings {
  return Object.fromEntries(
    found.flatMap(({ name, value }) =>
      isSettingName(name) && settingProblem(name, value) === null ? [[name, value]] : [],
    ),
  )
}

function render(name: SettingName, fixed: FixedSettings, found: readonly StoredSetting[]): SettingShape {
  const row = found.find((one) => one.name === name)
  const stored = inForce(row === undefined ? [] : [row])[name]
  const { default: preset, min, max, says } = SETTINGS[name]
  return {
    name,
    value: fixed[name] ?? stored ?? preset,
    default: preset,
    min,
    max,
    source: name in fixed ? 'environment' : stored === undefined ? 'default' : 'stored',
    description: says,
    updated_at: isoOrNull(row?.updatedAtMs ?? null),
    updated_by: row?.updatedBy ?? null,
  }
}
