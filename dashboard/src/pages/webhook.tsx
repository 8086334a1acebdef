import type { DeliveryShape, RedrivenDeliveries, WebhookSecretShape, WebhookShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link, useLocation } from 'wouter-preact'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { useFilters } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, Instant } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { listensTo } from './webhooks.tsx'
import { SecretDialog } from './webhooks-actions.tsx'
import { DeliveryPill, deliveryWords } from './webhooks-part.tsx'

const w = words(
  {
    test: 'Send a test',
    rotate: 'Rotate the secret',
    disable: 'Disable',
    enable: 'Enable',
    remove: 'Delete',
    redrive: 'Redrive',
    redriveDead: 'Redrive dead ones',
    willTest: 'The server sends a message of the type webhook.test.',
    willRotate:
      'The server makes a new secret, and shows it once. For 24 hours, messages are signed with both secrets.',
    willDisable: 'The webhook gets no new deliveries, and its pending ones wait.',
    willEnable: 'Pending deliveries are sent, and the webhook gets the ends of jobs from now on.',
    willRemove: 'The webhook and all its deliveries are deleted. This cannot be undone.',
    willRedrive: 'The server sends the message again, with the same id.',
    willRedriveDead: 'The server sends all dead deliveries again, with their ids.',
    done: 'Done.',
    redriven: (count: string) => `Deliveries that are sent again: ${count}.`,
    listens: 'Listens to',
    disabled: 'Disabled',
    oldSecret: 'Signed with the old secret, too, until',
    deliveries: 'Deliveries, newest first',
    state: 'State',
    all: 'all',
    type: 'Message',
    tries: 'Tries',
    answer: 'Last answer',
    next: 'Next try',
    made: 'Made',
    actions: 'Actions',
    none: 'No deliveries',
    noneHow: 'Each end of a job that the webhook listens to is a delivery.',
  },
  {
    test: 'テストを送る',
    rotate: 'シークレットを更新',
    disable: '無効にする',
    enable: '有効にする',
    remove: '削除',
    redrive: '再送',
    redriveDead: '配信不能を再送',
    willTest: 'webhook.test のメッセージを送ります。',
    willRotate: '新しいシークレットを作り、一度だけ表示します。24 時間は新旧両方で署名します。',
    willDisable: '新しい配信は作られず、待機中の配信は待ち続けます。',
    willEnable: '待機中の配信を送り、今後終了するジョブを知らせます。',
    willRemove: 'Webhook とその配信をすべて削除します。元には戻せません。',
    willRedrive: '同じ ID でメッセージをもう一度送ります。',
    willRedriveDead: '配信不能のメッセージをすべて、同じ ID でもう一度送ります。',
    done: '完了しました。',
    redriven: (count) => `再送する配信: ${count} 件。`,
    listens: '対象',
    disabled: '無効',
    oldSecret: '古いシークレットでも署名する期限',
    deliveries: '配信(新しい順)',
    state: '状態',
    all: 'すべて',
    type: 'メッセージ',
    tries: '試行',
    answer: '最後の応答',
    next: '次の試行',
    made: '作成',
    actions: '操作',
    none: '配信はありません',
    noneHow: '対象のジョブが終わるたびに配信が 1 つ作られます。',
  },
)

const STATES = ['pending', 'delivered', 'dead'] as const satisfies readonly DeliveryShape['state'][]

/** An action that waits for its confirmation. */
interface Action {
  name: string
  text: string
  danger?: boolean
  run(): Promise<unknown>
}

export default function WebhookPage({ params: { id = '' } }: { params: Record<string, string | undefined> }) {
  const path = `/v1/webhooks/${id}`
  const { filters, change } = useFilters(['state'])
  const found = useRead<WebhookShape>(path)
  const list = usePages<DeliveryShape>(`${path}/deliveries`, filters)
  const [action, act] = useState<Action | null>(null)
  const [secret, show] = useState<string | null>(null)
  const [, navigate] = useLocation()
  const mayOperate = useCan('operate')
  const rotate = async () => show((await send<WebhookSecretShape>('POST', `${path}/rotate-secret`, {})).secret)
  const redriveDead = async () => {
    const { redriven } = await send<RedrivenDeliveries>('POST', `${path}/redrive`)
    notify(w().redriven(formatNumber(redriven)))
  }
  const remove = async () => {
    await send('DELETE', path)
    navigate('/webhooks')
  }
  const turn = (enabled: boolean) => ({
    name: enabled ? w().enable : w().disable,
    text: enabled ? w().willEnable : w().willDisable,
    run: () => send('PATCH', path, { enabled }),
  })
  const redrive = ({ delivery_id }: DeliveryShape) =>
    act({
      name: w().redrive,
      text: w().willRedrive,
      run: () => send('POST', `${path}/deliveries/${delivery_id}/redrive`),
    })
  return (
    <>
      <Loaded of={found}>
        {(webhook) => {
          const actions: Action[] = [
            { name: w().test, text: w().willTest, run: () => send('POST', `${path}/test`) },
            { name: w().redriveDead, text: w().willRedriveDead, run: redriveDead },
            { name: w().rotate, text: w().willRotate, run: rotate },
            turn(!webhook.enabled),
            { name: w().remove, text: w().willRemove, danger: true, run: remove },
          ]
          return (
            <>
              <div class="head">
                <h2 class="wrap">{webhook.description || webhook.url}</h2>
                {mayOperate &&
                  actions.map((one) => (
                    <button
                      key={one.name}
                      type="button"
                      class={one.danger ? 'danger' : 'quiet'}
                      onClick={() => act(one)}
                    >
                      {one.name}
                    </button>
                  ))}
              </div>
              <p class="wrap">{webhook.url}</p>
              <p>
                {w().listens}: {listensTo(webhook)}
              </p>
              {!webhook.enabled && (
                <p class="trouble">
                  {w().disabled}: {webhook.disabled_reason}
                </p>
              )}
              {webhook.old_secret_until !== null && (
                <p class="note">
                  {w().oldSecret} <Instant of={webhook.old_secret_until} />
                </p>
              )}
            </>
          )
        }}
      </Loaded>
      {action !== null && (
        <ActionDialog
          title={action.name}
          action={action.name}
          danger={action.danger === true}
          run={async () => {
            await action.run()
            notify(w().done)
            void readAgain()
          }}
          onClose={() => act(null)}
        >
          <p>{action.text}</p>
        </ActionDialog>
      )}
      {secret !== null && <SecretDialog secret={secret} onClose={() => show(null)} />}
      <search class="filters">
        <label class="field">
          <span>{w().state}</span>
          <select value={filters.state ?? ''} onChange={(event) => change({ state: event.currentTarget.value })}>
            <option value="">{w().all}</option>
            {STATES.map((state) => (
              <option key={state} value={state}>
                {deliveryWords()[state]}
              </option>
            ))}
          </select>
        </label>
      </search>
      <div class="card list">
        <Loaded of={list as never} empty={{ is: (rows: DeliveryShape[]) => rows.length === 0, show: <NoDelivery /> }}>
          {(rows: DeliveryShape[]) => <DeliveryTable rows={rows} redrive={mayOperate ? redrive : null} />}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

function NoDelivery() {
  return (
    <Empty title={w().none}>
      <p>{w().noneHow}</p>
    </Empty>
  )
}

interface DeliveryTableProps {
  rows: readonly DeliveryShape[]
  /** Null: the visitor may not redrive. */
  redrive: ((delivery: DeliveryShape) => void) | null
}

function DeliveryTable({ rows, redrive }: DeliveryTableProps) {
  return (
    <table>
      <caption class="unseen">{w().deliveries}</caption>
      <thead>
        <tr>
          <th scope="col">{w().type}</th>
          <th scope="col">{w().state}</th>
          <th scope="col" class="number medium">
            {w().tries}
          </th>
          <th scope="col" class="medium">
            {w().answer}
          </th>
          <th scope="col" class="wide">
            {w().next}
          </th>
          <th scope="col" class="number wide">
            {w().made}
          </th>
          {redrive !== null && <th scope="col">{w().actions}</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map((delivery) => (
          <tr key={delivery.delivery_id} data-id={delivery.delivery_id}>
            <td class="wrap" title={delivery.delivery_id}>
              {delivery.job_id === null ? (
                delivery.type
              ) : (
                <Link href={`/jobs/${delivery.job_id}`} data-row="">
                  {delivery.type}
                </Link>
              )}
            </td>
            <td>
              <DeliveryPill of={delivery} />
            </td>
            <td class="number medium">{formatNumber(delivery.attempts)}</td>
            <td class="medium wrap">{delivery.last_error ?? delivery.last_status ?? '–'}</td>
            <td class="wide">
              <Instant of={delivery.next_at} />
            </td>
            <td class="number wide">
              <Age of={delivery.created_at} />
            </td>
            {redrive !== null && (
              <td>
                <button type="button" class="quiet" onClick={() => redrive(delivery)}>
                  {w().redrive}
                </button>
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  )
}
