import type { KeyShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { FilterField, useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, Instant, shortId } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { CALM_MS, readAgain, useRead } from '../server/queries.ts'
import { useMayChange } from '../server/session.ts'
import { words } from '../words.ts'

const w = words(
  {
    title: 'Keys',
    caption: 'Idempotency keys',
    key: 'Key',
    user: 'User',
    job: 'Job',
    made: 'Made',
    expires: 'Expires',
    expired: 'expired',
    activeOnly: 'Only keys that have not expired',
    extend: 'Extend',
    extendTitle: (key: string) => `Extend the key ${key}`,
    extendText: 'The key lives for this long from now on. Its lifetime is never shortened.',
    hours: 'Hours',
    extended: 'The key lives longer.',
    find: 'Find a key',
    none: 'No keys yet',
    noneText:
      'A submission with the header Idempotency-Key makes one. A second submission with the same key gets the same job.',
    unknown: 'There is no such key.',
  },
  {
    title: 'キー',
    caption: '冪等キー',
    key: 'キー',
    user: 'ユーザー',
    job: 'ジョブ',
    made: '作成',
    expires: '期限',
    expired: '期限切れ',
    activeOnly: '有効なキーのみ',
    extend: '延長',
    extendTitle: (key) => `キー ${key} を延長する`,
    extendText: '今からこの時間だけ有効になります。期限が短くなることはありません。',
    hours: '時間',
    extended: 'キーを延長しました。',
    find: 'キーを探す',
    none: 'キーはまだありません',
    noneText: 'Idempotency-Key ヘッダー付きの投入でキーができます。同じキーの投入には同じジョブが返ります。',
    unknown: 'このキーはありません。',
  },
)

export default function Keys() {
  const { filters, change } = useFilters(['key', 'active'])
  const list = usePages<KeyShape>(
    '/v1/idempotency-keys',
    { active: filters.active },
    CALM_MS,
    filters.key === undefined,
  )
  const one = useRead<{ data: KeyShape[] }>(
    `/v1/idempotency-keys/${encodeURIComponent(filters.key ?? '')}`,
    CALM_MS,
    filters.key !== undefined,
  )
  const [extending, setExtending] = useState<KeyShape | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <search class="filters">
        <FilterField label={w().find} value={filters.key} search onChange={(key) => change({ key })} />
        <label class="line">
          <input
            type="checkbox"
            checked={filters.active === 'true'}
            onChange={(event) => change({ active: event.currentTarget.checked ? 'true' : '' })}
          />
          {w().activeOnly}
        </label>
      </search>
      <div class="card list">
        {filters.key === undefined ? (
          <Loaded
            of={list as never}
            empty={{
              is: (data: KeyShape[]) => data.length === 0,
              show: (
                <Empty title={w().none}>
                  <p>{w().noneText}</p>
                </Empty>
              ),
            }}
          >
            {(keys: KeyShape[]) => <KeyTable keys={keys} extend={setExtending} />}
          </Loaded>
        ) : (
          <Loaded of={one}>{({ data }) => <KeyTable keys={data} extend={setExtending} />}</Loaded>
        )}
        {filters.key === undefined && <More of={list.pages} />}
      </div>
      {extending !== null && <ExtendDialog of={extending} onClose={() => setExtending(null)} />}
    </>
  )
}

function KeyTable({ keys, extend }: { keys: readonly KeyShape[]; extend(key: KeyShape): void }) {
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().key}</th>
          <th scope="col" class="wide">
            {w().user}
          </th>
          <th scope="col">{w().job}</th>
          <th scope="col" class="number wide">
            {w().made}
          </th>
          <th scope="col" class="medium">
            {w().expires}
          </th>
          <th scope="col">
            <span class="unseen">{w().extend}</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {keys.map((key) => (
          <tr key={`${key.user_id} ${key.operation} ${key.key}`}>
            <td class="clip" title={key.key}>
              {key.key}
            </td>
            <td class="wide">{key.user_id}</td>
            <td>
              <Link href={`/jobs/${key.job_id}`} data-row="">
                <code>{shortId(key.job_id)}</code>
              </Link>
            </td>
            <td class="number wide">
              <Age of={key.created_at} />
            </td>
            <td class="medium">{key.active ? <Instant of={key.expires_at} /> : w().expired}</td>
            <td>
              <Extend of={key} extend={extend} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function Extend({ of, extend }: { of: KeyShape; extend(key: KeyShape): void }) {
  const mayExtend = useMayChange(of.user_id)
  if (!mayExtend) return null
  return (
    <button type="button" class="quiet" aria-label={w().extendTitle(of.key)} onClick={() => extend(of)}>
      {w().extend}
    </button>
  )
}

function ExtendDialog({ of: { key }, onClose }: { of: KeyShape; onClose(): void }) {
  const [hours, setHours] = useState('24')
  return (
    <ActionDialog
      title={w().extendTitle(key)}
      action={w().extend}
      ready={Number(hours) > 0}
      run={async () => {
        await send('PATCH', `/v1/idempotency-keys/${encodeURIComponent(key)}`, { ttl_hours: Number(hours) })
        notify(w().extended)
        void readAgain()
      }}
      onClose={onClose}
    >
      <p>{w().extendText}</p>
      <label class="field">
        <span>{w().hours}</span>
        <input type="number" min="1" value={hours} onInput={(event) => setHours(event.currentTarget.value)} />
      </label>
    </ActionDialog>
  )
}
