import type { SettingShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { FilterField, useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { Age } from '../parts/text.tsx'
import { CALM_MS, useRead } from '../server/queries.ts'
import { formatNumber, words } from '../words.ts'
import { type Asked, SettingButtons, SettingDialog, settingText, settingVariable } from './settings-change.tsx'

const w = words(
  {
    title: 'Settings',
    search: 'Name or description',
    only: 'Only changed',
    name: 'Setting',
    value: 'Value',
    default: 'Default',
    range: 'Range',
    actions: 'Actions',
    changed: 'Changed',
    fixed: (variable: string) => `From the variable ${variable}`,
    by: 'by',
    ago: 'ago',
    alerts: 'Alerts',
    retention: 'Retention',
    limits: 'Limits',
    loops: 'Background work',
    others: 'Others',
    unmatched: 'No setting matches',
    clear: 'Clear the filters',
    count: (shown: number, all: number) => `${shown} of ${all}`,
  },
  {
    title: '設定',
    search: '名前または説明',
    only: '変更済みのみ',
    name: '設定',
    value: '値',
    default: '既定値',
    range: '範囲',
    actions: '操作',
    changed: '変更済み',
    fixed: (variable) => `環境変数 ${variable} の値`,
    by: '変更者',
    ago: '前',
    alerts: 'アラート',
    retention: '保持期間',
    limits: '上限',
    loops: 'バックグラウンド処理',
    others: 'その他',
    unmatched: '該当する設定はありません',
    clear: '条件を消す',
    count: (shown, all) => `${all} 件中 ${shown} 件`,
  },
)

/** The first that matches has the setting. A setting of a newer server is with the others. */
const GROUPS = [
  ['loops', /_interval_seconds$|_batch_max$/],
  ['retention', /_retention_|_kept$|_ttl_seconds$/],
  ['alerts', /^alert_/],
  ['limits', /_max$/],
  ['others', /./],
] as const
const ORDER = ['limits', 'retention', 'alerts', 'loops', 'others'] as const

const groupOf = (name: string) => GROUPS.find(([, pattern]) => pattern.test(name))?.[0] ?? 'others'

const NAMES = ['q', 'changed'] as const

export default function Settings() {
  const list = useRead<{ data: SettingShape[] }>('/v1/settings', CALM_MS)
  const { filters, change, clear } = useFilters(NAMES)
  const [asked, ask] = useState<Asked | null>(null)
  const wanted = (filters.q ?? '').toLowerCase()
  const matches = ({ name, description, source }: SettingShape) =>
    `${name} ${description}`.toLowerCase().includes(wanted) && (filters.changed === undefined || source !== 'default')
  const all = list.data?.data ?? []
  const shown = all.filter(matches)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        <span class="note">{w().count(shown.length, all.length)}</span>
      </div>
      <search class="filters">
        <FilterField label={w().search} value={filters.q} search onChange={(q) => change({ q })} />
        <label class="line">
          <input
            type="checkbox"
            checked={filters.changed !== undefined}
            onChange={(event) => change({ changed: event.currentTarget.checked ? 'yes' : '' })}
          />
          {w().only}
        </label>
      </search>
      {asked !== null && <SettingDialog asked={asked} onClose={() => ask(null)} />}
      <Loaded
        of={list}
        empty={{
          is: ({ data }) => !data.some(matches),
          show: (
            <Empty title={w().unmatched}>
              <button type="button" class="quiet" onClick={clear}>
                {w().clear}
              </button>
            </Empty>
          ),
        }}
      >
        {() => (
          <>
            {ORDER.map((group) => {
              const members = shown.filter(({ name }) => groupOf(name) === group)
              return members.length > 0 && <Group key={group} title={w()[group]} members={members} ask={ask} />
            })}
          </>
        )}
      </Loaded>
    </>
  )
}

interface GroupProps {
  title: string
  members: readonly SettingShape[]
  ask(asked: Asked): void
}

function Group({ title, members, ask }: GroupProps) {
  return (
    <div class="card list settings">
      <table>
        <caption>{title}</caption>
        <thead>
          <tr>
            <th scope="col">{w().name}</th>
            <th scope="col" class="number">
              {w().value}
            </th>
            <th scope="col" class="number medium">
              {w().default}
            </th>
            <th scope="col" class="number wide">
              {w().range}
            </th>
            <th scope="col">
              <span class="unseen">{w().actions}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {members.map((setting) => (
            <Row key={setting.name} setting={setting} ask={ask} />
          ))}
        </tbody>
      </table>
    </div>
  )
}

function Row({ setting, ask }: { setting: SettingShape; ask(asked: Asked): void }) {
  const { name, value, min, max, source, description, updated_at, updated_by } = setting
  return (
    <tr data-id={name}>
      <th scope="row">
        <code>{name}</code>
        {source !== 'default' && (
          <span class="pill" data-state="ASSIGNED">
            {w().changed}
          </span>
        )}
        <span class="note" lang="en">
          {description}
        </span>
        {source === 'environment' && <span class="note">{w().fixed(settingVariable(name))}</span>}
        {source === 'stored' && (
          <span class="note">
            <Age of={updated_at} /> {w().ago}, {w().by} {updated_by}
          </span>
        )}
      </th>
      <td class="number">{settingText(name, value)}</td>
      <td class="number medium">{settingText(name, setting.default)}</td>
      <td class="number wide">
        {formatNumber(min)} – {formatNumber(max)}
      </td>
      <td class="buttons">
        <SettingButtons setting={setting} ask={ask} />
      </td>
    </tr>
  )
}
