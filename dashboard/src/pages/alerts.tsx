import { ALERT_RULES, type AlertRule, type AlertShape, type Page, type SettingShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, formatDuration, Instant, Span } from '../parts/text.tsx'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useSeries } from '../server/series.ts'
import { formatCompact, words } from '../words.ts'
import { adviceWords, FIGURES, placeOf, ruleWords } from './alerts-words.ts'
import { Chart } from './overview-chart.tsx'
import { type Asked, SettingButtons, SettingDialog, settingText } from './settings-change.tsx'

const w = words(
  {
    title: 'Alerts',
    open: 'Open alerts',
    none: 'No alert is open',
    noneText: 'The leader checks the rules below every few seconds. An alert opens when a rule is broken.',
    since: 'Open for',
    act: 'Go there',
    now: 'Latest',
    noFigure: 'The server keeps no series for this rule.',
    deadLettered: 'Dead letters made',
    failed: 'Runs that failed or timed out',
    keyHits: 'Submissions that repeated a key',
    wait: 'Wait until the start (median)',
    oldest: 'Longest wait in the queue',
    history: 'History',
    rule: 'Rule',
    allRules: 'All rules',
    subject: 'Subject',
    opened: 'Opened',
    lasted: 'Lasted',
    message: 'Message',
    still: 'Still open',
    noHistory: 'No alert was ever opened',
    noMatch: 'No alert of this rule is kept',
    thresholds: 'Rules and thresholds',
    setting: 'Setting',
    value: 'Value',
    actions: 'Actions',
    noThreshold: 'This rule has no threshold.',
  },
  {
    title: 'アラート',
    open: '未解決のアラート',
    none: '未解決のアラートはありません',
    noneText: 'リーダーが下の規則を数秒ごとに調べます。規則に反するとアラートが開きます。',
    since: '経過',
    act: '対処する',
    now: '最新',
    noFigure: 'この規則の推移は記録されません。',
    deadLettered: '新しいデッドレター',
    failed: '失敗または時間切れの実行',
    keyHits: 'キーが重複した投入',
    wait: '開始までの待ち時間(中央値)',
    oldest: 'キュー内の最長の待ち時間',
    history: '履歴',
    rule: '規則',
    allRules: 'すべての規則',
    subject: '対象',
    opened: '発生',
    lasted: '期間',
    message: '内容',
    still: '未解決',
    noHistory: 'アラートはまだありません',
    noMatch: 'この規則のアラートは残っていません',
    thresholds: '規則としきい値',
    setting: '設定',
    value: '値',
    actions: '操作',
    noThreshold: 'この規則にしきい値はありません。',
  },
)

/** A rule of a newer server has no words here. */
const nameOf = (rule: AlertRule): string => ruleWords()[rule] ?? rule

export default function Alerts() {
  const open = usePages<AlertShape>('/v1/alerts')
  const [asked, ask] = useState<Asked | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      {asked !== null && <SettingDialog asked={asked} onClose={() => ask(null)} />}
      <section aria-label={w().open}>
        <Loaded
          of={open as never}
          empty={{
            is: (alerts: AlertShape[]) => alerts.length === 0,
            show: (
              <div class="card">
                <Empty title={w().none}>
                  <p>{w().noneText}</p>
                </Empty>
              </div>
            ),
          }}
        >
          {(alerts: AlertShape[]) => (
            <div class="grid">
              {alerts.map((alert) => (
                <OpenAlert key={alert.alert_id} alert={alert} />
              ))}
            </div>
          )}
        </Loaded>
        <More of={open.pages} />
      </section>
      <History />
      <Thresholds ask={ask} />
    </>
  )
}

function OpenAlert({ alert: { alert_id, rule, subject, message, opened_at } }: { alert: AlertShape }) {
  return (
    <article class="card pad alert" data-id={alert_id}>
      <h3>{nameOf(rule)}</h3>
      <p class="line">
        <b>{subject}</b>
        <span class="note">
          {w().since} <Age of={opened_at} />
        </span>
      </p>
      <p lang="en">{message}</p>
      <p class="note">{adviceWords()[rule]}</p>
      <Figure rule={rule} subject={subject} />
      <p>
        <Link class="quiet" href={placeOf(rule, subject)}>
          {w().act}
        </Link>
      </p>
    </article>
  )
}

/** The figure behind the alert over the last hour, with its latest value and a table. */
function Figure({ rule, subject }: { rule: AlertRule; subject: string }) {
  const figure = FIGURES[rule]
  const series = useSeries('1h', figure?.ofQueue ? subject : undefined)
  if (figure === undefined) return <p class="note">{w().noFigure}</p>
  const format = figure.unit === 'ms' ? (ms: number) => formatDuration(ms, 1) : formatCompact
  const line = { name: w().now, tone: 'FAILED' as const, of: figure.of }
  return (
    <Loaded of={series}>
      {(data) => (
        <Chart
          title={w()[figure.word]}
          series={data}
          lines={[line]}
          format={format}
          measured={figure.measured ?? false}
        />
      )}
    </Loaded>
  )
}

const NAMES = ['rule'] as const

function History() {
  const { filters, change } = useFilters(NAMES)
  const list = usePages<AlertShape>('/v1/alerts', { all: true, rule: filters.rule })
  return (
    <>
      <div class="head">
        <h2>{w().history}</h2>
        <label class="line">
          {w().rule}
          <select value={filters.rule ?? ''} onChange={(event) => change({ rule: event.currentTarget.value })}>
            <option value="">{w().allRules}</option>
            {ALERT_RULES.map((rule) => (
              <option key={rule} value={rule}>
                {nameOf(rule)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <div class="card list">
        <Loaded
          of={list as never}
          empty={{
            is: (alerts: AlertShape[]) => alerts.length === 0,
            show: <Empty title={filters.rule === undefined ? w().noHistory : w().noMatch} />,
          }}
        >
          {(alerts: AlertShape[]) => (
            <table class="history">
              <caption class="unseen">{w().history}</caption>
              <thead>
                <tr>
                  <th scope="col">{w().rule}</th>
                  <th scope="col">{w().subject}</th>
                  <th scope="col" class="medium">
                    {w().opened}
                  </th>
                  <th scope="col">{w().lasted}</th>
                  <th scope="col" class="wide">
                    {w().message}
                  </th>
                </tr>
              </thead>
              <tbody>
                {alerts.map(({ alert_id, rule, subject, message, opened_at, closed_at }) => (
                  <tr key={alert_id} data-past={alert_id}>
                    <td>{nameOf(rule)}</td>
                    <td class="wrap">{subject}</td>
                    <td class="medium">
                      <Instant of={opened_at} />
                    </td>
                    <td>{closed_at === null ? w().still : <Span from={opened_at} to={closed_at} />}</td>
                    <td class="wide wrap" lang="en">
                      {message}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

/** The settings of the rules, with the dialog of the settings page. */
function Thresholds({ ask }: { ask(asked: Asked): void }) {
  const list = useRead<Pick<Page<SettingShape>, 'data'>>('/v1/settings', CALM_MS)
  return (
    <>
      <div class="head">
        <h2>{w().thresholds}</h2>
      </div>
      <Loaded of={list}>
        {({ data }) => (
          <div class="card list settings">
            <table>
              <caption class="unseen">{w().thresholds}</caption>
              <thead>
                <tr>
                  <th scope="col">{w().setting}</th>
                  <th scope="col" class="number">
                    {w().value}
                  </th>
                  <th scope="col">
                    <span class="unseen">{w().actions}</span>
                  </th>
                </tr>
              </thead>
              {ALERT_RULES.map((rule) => (
                <RuleSettings
                  key={rule}
                  rule={rule}
                  settings={data.filter(({ name }) => name.startsWith(`alert_${rule}_`))}
                  ask={ask}
                />
              ))}
            </table>
          </div>
        )}
      </Loaded>
    </>
  )
}

interface RuleSettingsProps {
  rule: AlertRule
  settings: readonly SettingShape[]
  ask(asked: Asked): void
}

function RuleSettings({ rule, settings, ask }: RuleSettingsProps) {
  return (
    <tbody>
      <tr>
        <th scope="rowgroup" colSpan={3}>
          <b>{nameOf(rule)}</b>
          <span class="note">{settings.length === 0 ? w().noThreshold : adviceWords()[rule]}</span>
        </th>
      </tr>
      {settings.map((setting) => (
        <tr key={setting.name} data-setting={setting.name}>
          <th scope="row">
            <code>{setting.name}</code>
            <span class="note" lang="en">
              {setting.description}
            </span>
          </th>
          <td class="number">{settingText(setting.name, setting.value)}</td>
          <td class="buttons">
            <SettingButtons setting={setting} ask={ask} />
          </td>
        </tr>
      ))}
    </tbody>
  )
}
