import type { UserShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatBytes, formatNumber, words } from '../words.ts'
import { Reservations } from './users-reservations.tsx'

const w = words(
  {
    title: 'Users and quotas',
    caption: 'Users with their limits and use',
    user: 'User',
    jobs: 'Active jobs',
    cost: 'Cost',
    bytes: 'Stored',
    period: (period: string) => `per ${period}`,
    reserved: (count: string) => `${count} reserved`,
    of: (used: string, limit: string) => `${used} of ${limit}`,
    noLimit: (used: string) => `${used}, no limit`,
    notCounted: 'not counted',
    own: 'own limits',
    change: 'Limits',
    changeTitle: (user: string) => `Limits of ${user}`,
    changeText: 'An empty field means no limit. The limits count at once; jobs that run already go on.',
    maxJobs: 'Active jobs and reservations at a time',
    maxCost: 'Cost',
    maxBytes: 'Stored bytes',
    day: 'per day',
    month: 'per month',
    save: 'Save',
    saved: 'The limits are saved.',
    clear: 'Use the default limits',
    cleared: 'The user has the default limits.',
    none: 'No users yet',
    noneText: 'A user appears with its first job, token or limit.',
  },
  {
    title: 'ユーザーと上限',
    caption: 'ユーザーの上限と使用量',
    user: 'ユーザー',
    jobs: '実行中のジョブ',
    cost: 'コスト',
    bytes: '保存量',
    period: (period) => (period === 'day' ? '1 日あたり' : '1 か月あたり'),
    reserved: (count) => `予約 ${count}`,
    of: (used, limit) => `${used} / ${limit}`,
    noLimit: (used) => `${used}(上限なし)`,
    notCounted: '計測なし',
    own: '個別の上限',
    change: '上限',
    changeTitle: (user) => `${user} の上限`,
    changeText: '空欄は上限なしです。上限はすぐに有効になります。実行中のジョブは続きます。',
    maxJobs: '同時に存在できるジョブと予約',
    maxCost: 'コスト',
    maxBytes: '保存バイト数',
    day: '1 日あたり',
    month: '1 か月あたり',
    save: '保存',
    saved: '上限を保存しました。',
    clear: '既定の上限を使う',
    cleared: '既定の上限に戻しました。',
    none: 'ユーザーはまだいません',
    noneText: '最初のジョブ、トークン、上限とともに現れます。',
  },
)

export default function Users() {
  const list = usePages<UserShape>('/v1/users')
  const [changing, setChanging] = useState<UserShape | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <div class="card list">
        <Loaded
          of={list as never}
          empty={{
            is: (data: UserShape[]) => data.length === 0,
            show: (
              <Empty title={w().none}>
                <p>{w().noneText}</p>
              </Empty>
            ),
          }}
        >
          {(users: UserShape[]) => <UserTable users={users} change={setChanging} />}
        </Loaded>
        <More of={list.pages} />
      </div>
      <Reservations />
      {changing !== null && <LimitsDialog user={changing} onClose={() => setChanging(null)} />}
    </>
  )
}

function UserTable({ users, change }: { users: readonly UserShape[]; change(user: UserShape): void }) {
  const mayChange = useCan('administer')
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().user}</th>
          <th scope="col">{w().jobs}</th>
          <th scope="col" class="medium">
            {w().cost}
          </th>
          <th scope="col" class="wide">
            {w().bytes}
          </th>
          {mayChange && (
            <th scope="col">
              <span class="unseen">{w().change}</span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {users.map((user) => (
          <tr key={user.user_id}>
            <td>
              <Link href={`/jobs?user_id=${encodeURIComponent(user.user_id)}`} data-row="">
                {user.user_id}
              </Link>
              {user.custom && <span class="note"> {w().own}</span>}
            </td>
            <td>
              <Use used={user.active_jobs + user.active_reservations} limit={user.max_concurrent} name={w().jobs} />
              {user.active_reservations > 0 && (
                <span class="note">{w().reserved(formatNumber(user.active_reservations))}</span>
              )}
            </td>
            <td class="medium">
              <Use used={user.spent} limit={user.cost_limit} name={w().cost} />
              <span class="note"> {w().period(user.period)}</span>
            </td>
            <td class="wide">
              {user.used_bytes === null ? (
                <span class="faint">{w().notCounted}</span>
              ) : (
                <Use used={user.used_bytes} limit={user.max_bytes} name={w().bytes} format={formatBytes} />
              )}
            </td>
            {mayChange && (
              <td>
                <button type="button" class="quiet" onClick={() => change(user)}>
                  {w().change}
                </button>
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  )
}

interface UseProps {
  used: number
  limit: number | null
  name: string
  format?(value: number): string
}

/** The use against the limit: red when little is left. */
function Use({ used, limit, name, format = formatNumber }: UseProps) {
  if (limit === null) return <>{w().noLimit(format(used))}</>
  return (
    <>
      {w().of(format(used), format(limit))}
      <progress
        class={used >= limit * NEARLY_FULL ? 'bar full' : 'bar'}
        max={Math.max(limit, 1)}
        value={Math.min(used, limit)}
        aria-label={name}
      />
    </>
  )
}

const NEARLY_FULL = 0.9

const numberOf = (text: string): number | null => (text.trim() === '' ? null : Number(text))
const textOf = (value: number | null): string => (value === null ? '' : String(value))

function LimitsDialog({ user, onClose }: { user: UserShape; onClose(): void }) {
  const [jobs, setJobs] = useState(textOf(user.max_concurrent))
  const [cost, setCost] = useState(textOf(user.cost_limit))
  const [bytes, setBytes] = useState(textOf(user.max_bytes))
  const [period, setPeriod] = useState(user.period)
  const [clears, setClears] = useState(false)
  const path = `/v1/quotas/${encodeURIComponent(user.user_id)}`
  const finish = async (work: Promise<unknown>, done: string) => {
    await work
    notify(done)
    void readAgain()
  }
  const body = { max_concurrent: numberOf(jobs), cost_limit: numberOf(cost), max_bytes: numberOf(bytes), period }
  const save = () => (clears ? finish(send('DELETE', path), w().cleared) : finish(send('PUT', path, body), w().saved))
  return (
    <ActionDialog title={w().changeTitle(user.user_id)} action={w().save} run={save} onClose={onClose}>
      <p>{w().changeText}</p>
      <label class="field">
        <span>{w().maxJobs}</span>
        <input type="number" min="0" value={jobs} onInput={(event) => setJobs(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().maxCost}</span>
        <input type="number" min="0" step="any" value={cost} onInput={(event) => setCost(event.currentTarget.value)} />
      </label>
      <select
        aria-label={w().maxCost}
        value={period}
        onChange={(event) => setPeriod(event.currentTarget.value === 'day' ? 'day' : 'month')}
      >
        <option value="day">{w().day}</option>
        <option value="month">{w().month}</option>
      </select>
      <label class="field">
        <span>{w().maxBytes}</span>
        <input type="number" min="0" value={bytes} onInput={(event) => setBytes(event.currentTarget.value)} />
      </label>
      {user.custom && (
        <label class="line">
          <input type="checkbox" checked={clears} onChange={(event) => setClears(event.currentTarget.checked)} />
          {w().clear}
        </label>
      )}
    </ActionDialog>
  )
}
