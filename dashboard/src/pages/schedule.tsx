import { DEFAULT_QUEUE, type DefinitionShape, type TickShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Loaded } from '../parts/loaded.tsx'
import { formatDuration, Instant, Json } from '../parts/text.tsx'
import { BackfillDialog, Backfills, PauseDialog, RunDialog } from '../schedules/actions.tsx'
import { Ledger } from '../schedules/ledger.tsx'
import { choiceWord, RuleDialog, TickList } from '../schedules/rule-editor.tsx'
import { ruleInWords } from '../schedules/rule-words.ts'
import { withQuery } from '../server/call.ts'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { language, words } from '../words.ts'

const w = words(
  {
    paused: 'Paused',
    pause: 'Pause',
    resume: 'Resume',
    run: 'Run now',
    backfill: 'Backfill',
    edit: 'Change the rule',
    rule: 'Rule',
    cron: 'Cron',
    zone: 'Time zone',
    missed: 'Missed ticks',
    overlap: 'Overlap',
    jitter: 'Jitter',
    starts: 'Starts',
    ends: 'Ends',
    unscheduled: 'It has no schedule.',
    next: 'Next ticks',
    nonePaused: 'A pause skips these ticks.',
    reacts: 'Reacts to',
    topic: 'Topic',
    where: 'Where',
    any: 'any data',
    whenPaused: 'During a pause',
    keep: 'triggers wait',
    skip: 'triggers are skipped',
    jobs: 'Its jobs',
    kind: 'Kind',
    queue: 'Queue',
    user: 'User',
    payload: 'Payload',
  },
  {
    paused: '停止中',
    pause: '停止',
    resume: '再開',
    run: '今すぐ実行',
    backfill: '過去分を作成',
    edit: '規則を変更',
    rule: '規則',
    cron: 'cron',
    zone: 'タイムゾーン',
    missed: '逃した予定',
    overlap: '重なり',
    jitter: 'ゆらぎ',
    starts: '開始',
    ends: '終了',
    unscheduled: 'スケジュールはありません。',
    next: '次の予定',
    nonePaused: '停止中は、これらの予定をスキップします。',
    reacts: '反応するトリガー',
    topic: 'トピック',
    where: '条件',
    any: 'すべて',
    whenPaused: '停止中',
    keep: 'トリガーは待つ',
    skip: 'トリガーはスキップ',
    jobs: '作るジョブ',
    kind: '種別',
    queue: 'キュー',
    user: 'ユーザー',
    payload: 'ペイロード',
  },
)

type Asked = 'pause' | 'run' | 'backfill' | 'edit'

export default function Schedule({ params: { name = '' } }: { params: Record<string, string | undefined> }) {
  const found = useRead<DefinitionShape>(`/v1/definitions/${encodeURIComponent(name)}`)
  return (
    <>
      {found.data === undefined && (
        <div class="head">
          <h2>{name}</h2>
        </div>
      )}
      <Loaded of={found}>{(definition) => <Shown definition={definition} />}</Loaded>
    </>
  )
}

function Shown({ definition }: { definition: DefinitionShape }) {
  const { name, schedule, on, paused } = definition
  const [asked, ask] = useState<Asked | null>(null)
  const mayOperate = useCan('operate')
  const props = { definition, onClose: () => ask(null) }
  const buttons: [Asked, string][] = [
    ['pause', paused ? w().resume : w().pause],
    ['run', w().run],
    ...(schedule === null ? [] : ([['backfill', w().backfill]] as [Asked, string][])),
    ['edit', w().edit],
  ]
  return (
    <>
      <div class="head">
        <h2>{name}</h2>
        {paused && (
          <span class="pill" data-state="TIMED_OUT">
            {w().paused}
          </span>
        )}
        {mayOperate && (
          <span class="line">
            {buttons.map(([what, word]) => (
              <button key={what} type="button" class="quiet" onClick={() => ask(what)}>
                {word}
              </button>
            ))}
          </span>
        )}
      </div>
      <div class="grid">
        <Rule definition={definition} />
        {schedule !== null && <NextTicks definition={definition} />}
        {on !== null && <Reacts on={on} />}
        <Jobs definition={definition} />
      </div>
      <Backfills name={name} />
      {schedule !== null && <Ledger name={name} />}
      {asked === 'pause' && <PauseDialog {...props} />}
      {asked === 'run' && <RunDialog {...props} />}
      {asked === 'backfill' && <BackfillDialog {...props} />}
      {asked === 'edit' && <RuleDialog {...props} />}
    </>
  )
}

function Rule({ definition: { schedule } }: { definition: DefinitionShape }) {
  return (
    <section class="card pad">
      <h3>{w().rule}</h3>
      {schedule === null ? (
        <p>{w().unscheduled}</p>
      ) : (
        <>
          <p>
            <b>{ruleInWords(schedule.cron, language.value)}</b>
          </p>
          <dl class="facts">
            <dt>{w().cron}</dt>
            <dd>
              <code>{schedule.cron}</code>
            </dd>
            <dt>{w().zone}</dt>
            <dd>{schedule.time_zone}</dd>
            <dt>{w().missed}</dt>
            <dd>
              {choiceWord(schedule.catch_up)} ({formatDuration(schedule.catch_up_window_seconds * 1_000)})
            </dd>
            <dt>{w().overlap}</dt>
            <dd>{choiceWord(schedule.overlap)}</dd>
            <dt>{w().jitter}</dt>
            <dd>{schedule.jitter_seconds === 0 ? '–' : formatDuration(schedule.jitter_seconds * 1_000)}</dd>
            <dt>{w().starts}</dt>
            <dd>
              <Instant of={schedule.starts_at} />
            </dd>
            <dt>{w().ends}</dt>
            <dd>
              <Instant of={schedule.ends_at} />
            </dd>
          </dl>
        </>
      )}
    </section>
  )
}

function NextTicks({ definition: { name, paused } }: { definition: DefinitionShape }) {
  const ticks = useRead<{ data: TickShape[] }>(`/v1/definitions/${name}/ticks?limit=8`, CALM_MS)
  return (
    <section class="card pad" aria-label={w().next}>
      <h3>{w().next}</h3>
      {paused && <p>{w().nonePaused}</p>}
      <Loaded of={ticks}>{({ data }) => <TickList ticks={data} />}</Loaded>
    </section>
  )
}

function Reacts({ on }: { on: NonNullable<DefinitionShape['on']> }) {
  const where = Object.entries(on.where).map(([path, value]) => `${path} = ${JSON.stringify(value)}`)
  return (
    <section class="card pad" aria-label={w().reacts}>
      <h3>{w().reacts}</h3>
      <dl class="facts">
        <dt>{w().topic}</dt>
        <dd>{on.topic}</dd>
        <dt>{w().where}</dt>
        <dd>{where.length === 0 ? w().any : where.join(', ')}</dd>
        <dt>{w().whenPaused}</dt>
        <dd>{w()[on.when_paused]}</dd>
      </dl>
    </section>
  )
}

function Jobs({ definition: { kind, queue, user_id, payload } }: { definition: DefinitionShape }) {
  return (
    <section class="card pad">
      <h3>{w().jobs}</h3>
      <dl class="facts">
        <dt>{w().kind}</dt>
        <dd>
          <Link href={withQuery('/jobs', { kind })}>{kind}</Link>
        </dd>
        <dt>{w().queue}</dt>
        <dd>
          <Link href={withQuery('/jobs', { queue: queue ?? DEFAULT_QUEUE })}>{queue ?? DEFAULT_QUEUE}</Link>
        </dd>
        <dt>{w().user}</dt>
        <dd>{user_id}</dd>
      </dl>
      <h3>{w().payload}</h3>
      <Json value={payload} name={w().payload} />
    </section>
  )
}
