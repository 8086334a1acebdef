import type { DefinitionShape, OccurrenceShape, Page } from '@ichido/sdk/protocol'
import { DEFAULT_QUEUE } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, Command, commandLine, Instant } from '../parts/text.tsx'
import { PauseDialog, RunDialog } from '../schedules/actions.tsx'
import { Outcome, Strip } from '../schedules/ledger.tsx'
import { ruleInWords } from '../schedules/rule-words.ts'
import { withQuery } from '../server/call.ts'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { language, words } from '../words.ts'

const w = words(
  {
    title: 'Schedules',
    caption: 'Definitions, newest first',
    name: 'Name',
    rule: 'Rule',
    next: 'Next tick',
    last: 'Last ticks',
    ago: 'ago',
    actions: 'Actions',
    paused: 'Paused',
    pause: 'Pause',
    resume: 'Resume',
    run: 'Run now',
    of: (action: string, name: string) => `${action}: ${name}`,
    onTopic: (topic: string) => `When ${topic} happens`,
    manual: 'Only when somebody runs it',
    none: 'No definitions yet',
    noneHow: 'A definition is a named template of jobs. A schedule or a trigger makes its jobs. Make the first one:',
  },
  {
    title: 'スケジュール',
    caption: '定義(新しい順)',
    name: '名前',
    rule: '規則',
    next: '次の予定',
    last: '直近の予定',
    ago: '前',
    actions: '操作',
    paused: '停止中',
    pause: '停止',
    resume: '再開',
    run: '今すぐ実行',
    of: (action, name) => `${action}: ${name}`,
    onTopic: (topic) => `${topic} の発生時`,
    manual: '手動でのみ実行',
    none: '定義はまだありません',
    noneHow: '定義は、ジョブの名前付きのひな型です。スケジュールかトリガーがジョブを作ります。最初の定義を作るには:',
  },
)

/** What makes the jobs of a definition, in words. */
function ruleOf({ schedule, on }: DefinitionShape): string {
  const parts = [
    schedule === null ? null : `${ruleInWords(schedule.cron, language.value)} (${schedule.time_zone})`,
    on === null ? null : w().onTopic(on.topic),
  ].filter((part) => part !== null)
  return parts.length === 0 ? w().manual : parts.join(' / ')
}

type Asked = { definition: DefinitionShape; what: 'pause' | 'run' }

export default function Schedules() {
  const list = usePages<DefinitionShape>('/v1/definitions')
  const [asked, ask] = useState<Asked | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <div class="card list">
        <Loaded
          of={list as never}
          empty={{
            is: (rows: DefinitionShape[]) => rows.length === 0,
            show: (
              <Empty title={w().none}>
                <p>{w().noneHow}</p>
                <Command
                  text={commandLine(
                    "definitions create nightly --kind demo.hello --queue demo --cron '30 2 * * *' --time-zone Europe/Berlin",
                  )}
                />
              </Empty>
            ),
          }}
        >
          {(rows: DefinitionShape[]) => <DefinitionTable rows={rows} ask={ask} />}
        </Loaded>
        <More of={list.pages} />
      </div>
      {asked?.what === 'pause' && <PauseDialog definition={asked.definition} onClose={() => ask(null)} />}
      {asked?.what === 'run' && <RunDialog definition={asked.definition} onClose={() => ask(null)} />}
    </>
  )
}

function DefinitionTable({ rows, ask }: { rows: readonly DefinitionShape[]; ask(asked: Asked): void }) {
  const mayOperate = useCan('operate')
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().name}</th>
          <th scope="col" class="medium">
            {w().rule}
          </th>
          <th scope="col" class="medium">
            {w().next}
          </th>
          <th scope="col">{w().last}</th>
          {mayOperate && <th scope="col">{w().actions}</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map((definition) => {
          const { name, kind, queue, paused } = definition
          return (
            <tr key={name} data-id={name}>
              <td>
                <Link href={`/schedules/${name}`} data-row="">
                  {name}
                </Link>{' '}
                {paused && (
                  <span class="pill" data-state="TIMED_OUT">
                    {w().paused}
                  </span>
                )}
                <span class="note makes">
                  <Link href={withQuery('/jobs', { kind })}>{kind}</Link> ·{' '}
                  <Link href={withQuery('/jobs', { queue: queue ?? DEFAULT_QUEUE })}>{queue ?? DEFAULT_QUEUE}</Link>
                </span>
                <small>{ruleOf(definition)}</small>
              </td>
              <td class="medium wrap" title={definition.schedule?.cron}>
                {ruleOf(definition)}
              </td>
              <td class="medium">
                <Instant of={definition.next_tick_at} />
              </td>
              <td>
                <LastTicks definition={definition} />
              </td>
              {mayOperate && (
                <td class="buttons">
                  <button
                    type="button"
                    class="quiet"
                    aria-label={w().of(paused ? w().resume : w().pause, name)}
                    onClick={() => ask({ definition, what: 'pause' })}
                  >
                    {paused ? w().resume : w().pause}
                  </button>
                  <button
                    type="button"
                    class="quiet"
                    aria-label={w().of(w().run, name)}
                    onClick={() => ask({ definition, what: 'run' })}
                  >
                    {w().run}
                  </button>
                </td>
              )}
            </tr>
          )
        })}
      </tbody>
    </table>
  )
}

const TICKS_SHOWN = 20

/** The newest entries of the ledger, which also shows a tick that is missing. */
function LastTicks({ definition: { name, schedule, last_tick_at } }: { definition: DefinitionShape }) {
  const path = withQuery(`/v1/definitions/${name}/occurrences`, { limit: TICKS_SHOWN })
  const { data } = useRead<Page<OccurrenceShape>>(path, CALM_MS, schedule !== null)
  const last = data?.data[0]
  if (data === undefined || last === undefined) return <Age of={last_tick_at} />
  return (
    <>
      <Strip rows={data.data} short />
      <span class="line">
        <Outcome of={last} />
        <span class="medium">
          <Age of={last.scheduled_for} /> {w().ago}
        </span>
      </span>
    </>
  )
}
