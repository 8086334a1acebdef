import type { DeliveryShape, Page, WebhookShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, Command, commandLine } from '../parts/text.tsx'
import { CALM_MS, useRead } from '../server/queries.ts'
import { useCan } from '../server/session.ts'
import { words } from '../words.ts'
import { CreateWebhook, SecretDialog } from './webhooks-actions.tsx'
import { DeliveryPill } from './webhooks-part.tsx'

const w = words(
  {
    title: 'Webhooks',
    caption: 'Webhooks, oldest first',
    create: 'Create a webhook',
    webhook: 'Webhook',
    listens: 'Listens to',
    state: 'State',
    enabled: 'Enabled',
    disabled: 'Disabled',
    last: 'Last delivery',
    none: 'No webhooks yet',
    noneHow: 'A webhook sends a signed message to your program when a job ends, or when an alert opens or closes:',
  },
  {
    title: 'Webhook',
    caption: 'Webhook(古い順)',
    create: 'Webhook を作る',
    webhook: 'Webhook',
    listens: '対象',
    state: '状態',
    enabled: '有効',
    disabled: '無効',
    last: '最後の配信',
    none: 'Webhook はまだありません',
    noneHow: 'Webhook は、ジョブの終了やアラートの発生・解消を、署名付きのメッセージで外部のプログラムに知らせます。',
  },
)

export default function Webhooks() {
  const list = usePages<WebhookShape>('/v1/webhooks')
  const [creating, create] = useState(false)
  const [secret, show] = useState<string | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        {useCan('operate') && (
          <button type="button" class="main" onClick={() => create(true)}>
            {w().create}
          </button>
        )}
      </div>
      {creating && <CreateWebhook onMade={show} onClose={() => create(false)} />}
      {secret !== null && <SecretDialog secret={secret} onClose={() => show(null)} />}
      <div class="card list">
        <Loaded of={list as never} empty={{ is: (rows: WebhookShape[]) => rows.length === 0, show: <NoWebhook /> }}>
          {(rows: WebhookShape[]) => <WebhookTable rows={rows} />}
        </Loaded>
        <More of={list.pages} />
      </div>
    </>
  )
}

function NoWebhook() {
  return (
    <Empty title={w().none}>
      <p>{w().noneHow}</p>
      <Command text={commandLine('webhooks create https://example.org/ichido')} />
    </Empty>
  )
}

function WebhookTable({ rows }: { rows: readonly WebhookShape[] }) {
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().webhook}</th>
          <th scope="col" class="medium">
            {w().listens}
          </th>
          <th scope="col">{w().state}</th>
          <th scope="col">{w().last}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((webhook) => (
          <tr key={webhook.webhook_id} data-id={webhook.webhook_id}>
            <td class="wrap">
              <Link href={`/webhooks/${webhook.webhook_id}`} data-row="">
                {webhook.description || webhook.url}
              </Link>
            </td>
            <td class="medium wrap">{listensTo(webhook)}</td>
            <td title={webhook.disabled_reason ?? undefined}>{webhook.enabled ? w().enabled : w().disabled}</td>
            <td>
              <LastDelivery of={webhook} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

export function listensTo({ events, queue, kind, label }: WebhookShape): string {
  return [events.join(', '), queue, kind, label].filter((part) => part !== null).join(' · ')
}

function LastDelivery({ of: { webhook_id } }: { of: WebhookShape }) {
  const { data } = useRead<Page<DeliveryShape>>(`/v1/webhooks/${webhook_id}/deliveries?limit=1`, CALM_MS)
  const last = data?.data[0]
  if (last === undefined) return <>–</>
  return (
    <>
      <DeliveryPill of={last} /> <Age of={last.created_at} />
    </>
  )
}
