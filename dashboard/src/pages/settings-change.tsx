import type { SettingShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { formatDuration } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'

const w = words(
  {
    change: 'Change',
    changeNamed: (name: string) => `Change ${name}`,
    reset: 'Reset',
    resetNamed: (name: string) => `Reset ${name}`,
    value: 'New value',
    range: (min: string, max: string) => `From ${min} to ${max}.`,
    becomes: (name: string, before: string, after: string) => `${name} changes from ${before} to ${after}.`,
    soon: 'Every node uses the new value within a moment, without a restart.',
    toDefault: 'The stored value is removed, and the default applies again.',
    save: 'Save',
    saved: (name: string, value: string) => `${name} is now ${value}.`,
    fixed: 'Fixed by the environment',
  },
  {
    change: '変更',
    changeNamed: (name) => `${name} を変更`,
    reset: '戻す',
    resetNamed: (name) => `${name} を既定値に戻す`,
    value: '新しい値',
    range: (min, max) => `${min} から ${max} まで。`,
    becomes: (name, before, after) => `${name} を ${before} から ${after} に変更します。`,
    soon: 'すべてのノードがすぐに新しい値を使います。再起動は不要です。',
    toDefault: '保存された値を消し、既定値に戻します。',
    save: '保存',
    saved: (name, value) => `${name} は ${value} になりました。`,
    fixed: '環境変数で固定',
  },
)

const SECOND_MS = 1_000

/** The number, and for a long time also its largest units. */
export function settingText(name: string, value: number): string {
  const number = formatNumber(value)
  return name.endsWith('_seconds') && value >= 60 ? `${number} (${formatDuration(value * SECOND_MS)})` : number
}

/** The environment variable that overrides the stored value. */
export const settingVariable = (name: string): string => name.toUpperCase()

export interface Asked {
  setting: SettingShape
  what: 'change' | 'reset'
}

/** The buttons of a setting. The environment's value cannot be changed from here. */
export function SettingButtons({ setting, ask }: { setting: SettingShape; ask(asked: Asked): void }) {
  const mayChange = useCan('administer')
  const { name, source } = setting
  if (source === 'environment') return <span class="note">{w().fixed}</span>
  if (!mayChange) return null
  return (
    <>
      <button
        type="button"
        class="quiet"
        aria-label={w().changeNamed(name)}
        onClick={() => ask({ setting, what: 'change' })}
      >
        {w().change}
      </button>
      {source === 'stored' && (
        <button
          type="button"
          class="quiet"
          aria-label={w().resetNamed(name)}
          onClick={() => ask({ setting, what: 'reset' })}
        >
          {w().reset}
        </button>
      )}
    </>
  )
}

/** Says the old and the new value before it changes a setting. The server checks the value. */
export function SettingDialog({ asked: { setting, what }, onClose }: { asked: Asked; onClose(): void }) {
  const { name, value, min, max, description } = setting
  const [typed, setTyped] = useState(String(value))
  const path = `/v1/settings/${encodeURIComponent(name)}`
  const wanted = what === 'reset' ? setting.default : typed.trim() === '' ? Number.NaN : Number(typed)
  const ready = what === 'reset' || (Number.isFinite(wanted) && wanted !== value)
  const run = async () => {
    const after =
      what === 'reset'
        ? await send<SettingShape>('DELETE', path)
        : await send<SettingShape>('PUT', path, { value: wanted })
    notify(w().saved(name, settingText(name, after.value)))
    void readAgain()
  }
  return (
    <ActionDialog
      title={what === 'reset' ? w().resetNamed(name) : w().changeNamed(name)}
      action={what === 'reset' ? w().reset : w().save}
      ready={ready}
      run={run}
      onClose={onClose}
    >
      <p lang="en">{description}</p>
      {what === 'change' && (
        <label class="field">
          <span>{w().value}</span>
          <input
            inputMode="decimal"
            autocomplete="off"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
          <span class="note">{w().range(formatNumber(min), formatNumber(max))}</span>
        </label>
      )}
      {ready && <p>{w().becomes(name, settingText(name, value), settingText(name, wanted))}</p>}
      <p class="note">{what === 'reset' ? w().toDefault : w().soon}</p>
    </ActionDialog>
  )
}
