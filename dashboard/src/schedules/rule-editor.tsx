import { type DefinitionShape, IchidoError, type ScheduleShape, type TickShape } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { messageOf } from '../parts/loaded.tsx'
import { formatDuration, nowMs } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { language, words } from '../words.ts'
import { ruleInWords } from './rule-words.ts'

const w = words(
  {
    title: (name: string) => `Change the rule of ${name}`,
    will: 'The new rule applies from now on. Earlier ticks keep their jobs.',
    cron: 'Cron rule',
    time_zone: 'Time zone',
    catch_up: 'Missed ticks',
    overlap: 'While a job has not ended',
    jitter_seconds: 'Jitter, in seconds',
    skip: 'skip',
    last: 'make the last one',
    all: 'make all within the window',
    allow: 'make the next job',
    queue_one: 'one tick waits',
    next: 'Next ticks',
    in: (duration: string) => `in ${duration}`,
    save: 'Save',
    saved: (name: string) => `The rule of ${name} is changed.`,
  },
  {
    title: (name) => `${name} の規則を変更`,
    will: '新しい規則は今から有効です。過去の予定のジョブはそのままです。',
    cron: 'cron 規則',
    time_zone: 'タイムゾーン',
    catch_up: '逃した予定',
    overlap: '前のジョブが終わっていないとき',
    jitter_seconds: 'ゆらぎ(秒)',
    skip: 'スキップ',
    last: '最後の 1 件を作る',
    all: '期間内をすべて作る',
    allow: '次のジョブを作る',
    queue_one: '1 件だけ待つ',
    next: '次の予定',
    in: (duration) => `${duration}後`,
    save: '保存',
    saved: (name) => `${name} の規則を変更しました。`,
  },
)

const NEW_SCHEDULE: ScheduleShape = {
  cron: '0 3 * * *',
  time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  catch_up: 'last',
  catch_up_window_seconds: 86_400,
  overlap: 'allow',
  jitter_seconds: 0,
  starts_at: null,
  ends_at: null,
}
const PREVIEWED = 5
/** What is done with a missed tick, or while a job has not ended, in words. */
export const choiceWord = (choice: ScheduleShape['catch_up'] | ScheduleShape['overlap']): string => w()[choice]

const CHOICES = { catch_up: ['skip', 'last', 'all'], overlap: ['allow', 'skip', 'queue_one'] } as const

/** The fields of a definition that a replacement takes; the rest is the server's. */
function replacementOf(definition: DefinitionShape, schedule: ScheduleShape) {
  const {
    definition_id,
    name,
    paused,
    paused_at,
    user_id,
    next_tick_at,
    last_tick_at,
    created_at,
    updated_at,
    ...kept
  } = definition
  return { ...kept, schedule }
}

/** Previews a rule as it is typed. A rule that the server refuses cannot be saved, and its field is named. */
export function RuleDialog({ definition, onClose }: { definition: DefinitionShape; onClose(): void }) {
  // The version of the dialog's beginning: a change of another operator since then refuses this one.
  const [before] = useState(definition)
  const [schedule, setSchedule] = useState(before.schedule ?? NEW_SCHEDULE)
  const change = (changes: Partial<ScheduleShape>) => setSchedule({ ...schedule, ...changes })
  const { data, error, isPlaceholderData } = useQuery({
    queryKey: ['preview', schedule],
    queryFn: () => send<{ data: TickShape[] }>('POST', '/v1/definitions/preview', { schedule, limit: PREVIEWED }),
    staleTime: 0,
    gcTime: 0,
  })
  const ticks = isPlaceholderData || error !== null ? undefined : data
  const refused = error instanceof IchidoError ? String(error.details?.field ?? '').replace('schedule.', '') : ''
  const save = async () => {
    await send('PUT', `/v1/definitions/${before.name}`, replacementOf(before, schedule))
    notify(w().saved(before.name))
    void readAgain()
  }
  const field = (name: keyof ScheduleShape) => ({
    'aria-invalid': refused === name,
    'aria-describedby': refused === name ? 'rule-refused' : undefined,
  })
  return (
    <ActionDialog
      title={w().title(before.name)}
      action={w().save}
      ready={ticks !== undefined}
      run={save}
      onClose={onClose}
    >
      <p>{w().will}</p>
      {(['cron', 'time_zone'] as const).map((name) => (
        <label key={name} class="field">
          <span>{w()[name]}</span>
          <input
            value={schedule[name]}
            spellcheck={false}
            autocomplete="off"
            {...field(name)}
            onInput={(event) => change({ [name]: event.currentTarget.value })}
          />
        </label>
      ))}
      {(['catch_up', 'overlap'] as const).map((name) => (
        <label key={name} class="field">
          <span>{w()[name]}</span>
          <select
            value={schedule[name]}
            {...field(name)}
            onChange={(event) => change({ [name]: event.currentTarget.value })}
          >
            {CHOICES[name].map((choice) => (
              <option key={choice} value={choice}>
                {w()[choice]}
              </option>
            ))}
          </select>
        </label>
      ))}
      <label class="field">
        <span>{w().jitter_seconds}</span>
        <input
          type="number"
          min={0}
          step={1}
          value={schedule.jitter_seconds}
          {...field('jitter_seconds')}
          onInput={(event) => change({ jitter_seconds: Number(event.currentTarget.value) })}
        />
      </label>
      {error !== null && (
        <p class="problem" role="alert" id="rule-refused">
          {messageOf(error)}
        </p>
      )}
      {ticks !== undefined && (
        <div role="status">
          <p>
            <b>{ruleInWords(schedule.cron.trim(), language.value)}</b>
          </p>
          <h3>{w().next}</h3>
          <TickList ticks={ticks.data} />
        </div>
      )}
    </ActionDialog>
  )
}

/** The day of the week of a date, whatever the zone of the browser. */
const weekday = (date: string): string =>
  new Intl.DateTimeFormat(language.value, { weekday: 'short', timeZone: 'UTC' }).format(new Date(date))

/** Ticks in the time zone of their schedule, and how far away they are. */
export function TickList({ ticks }: { ticks: readonly TickShape[] }) {
  return (
    <ul class="plain">
      {ticks.map(({ scheduled_for, local_time }) => (
        <li key={scheduled_for}>
          <time dateTime={scheduled_for}>
            {weekday(local_time.slice(0, 10))} {local_time.replace('T', ' ')}
          </time>{' '}
          <span class="note">{w().in(formatDuration(Math.max(0, Date.parse(scheduled_for) - nowMs.value), 1))}</span>
        </li>
      ))}
    </ul>
  )
}
