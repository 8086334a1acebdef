import type { WebhookSecretShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, Dialog } from '../parts/dialog.tsx'
import { Copy } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { words } from '../words.ts'

const w = words(
  {
    create: 'Create a webhook',
    will: 'The webhook gets a message for each job that ends from now on. The page shows its secret only once.',
    url: 'URL',
    description: 'Name',
    queue: 'Only this queue (empty: all)',
    alerts: 'Also send alerts',
    secretTitle: 'The secret of the webhook',
    once: 'Copy the secret now. The server does not show it again.',
    secret: 'the secret',
    done: 'Close',
  },
  {
    create: 'Webhook を作る',
    will: '今後終了するジョブごとにメッセージを送ります。シークレットは一度だけ表示されます。',
    url: 'URL',
    description: '名前',
    queue: 'このキューだけ(空欄ならすべて)',
    alerts: 'アラートも送る',
    secretTitle: 'Webhook のシークレット',
    once: '今すぐコピーしてください。サーバーは二度と表示しません。',
    secret: 'シークレット',
    done: '閉じる',
  },
)

const JOBS = ['job.succeeded', 'job.failed', 'job.timed_out', 'job.canceled']
const ALERTS = ['alert.opened', 'alert.closed']

export function CreateWebhook({ onMade, onClose }: { onMade(secret: string): void; onClose(): void }) {
  const [url, setUrl] = useState('')
  const [description, setDescription] = useState('')
  const [queue, setQueue] = useState('')
  const [alerts, setAlerts] = useState(false)
  const create = async () => {
    const events = alerts ? [...JOBS, ...ALERTS] : JOBS
    const body = { url: url.trim(), description, events, queue: queue.trim() || null }
    const { secret } = await send<WebhookSecretShape>('POST', '/v1/webhooks', body)
    onMade(secret)
    void readAgain()
  }
  return (
    <ActionDialog title={w().create} action={w().create} ready={url.trim() !== ''} run={create} onClose={onClose}>
      <p>{w().will}</p>
      <label class="field">
        <span>{w().url}</span>
        <input value={url} required onInput={(event) => setUrl(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().description}</span>
        <input value={description} maxLength={500} onInput={(event) => setDescription(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().queue}</span>
        <input value={queue} onInput={(event) => setQueue(event.currentTarget.value)} />
      </label>
      <label>
        <input type="checkbox" checked={alerts} onChange={(event) => setAlerts(event.currentTarget.checked)} />{' '}
        {w().alerts}
      </label>
    </ActionDialog>
  )
}

/** The server does not show the secret again. */
export function SecretDialog({ secret, onClose }: { secret: string; onClose(): void }) {
  return (
    <Dialog title={w().secretTitle} onClose={onClose}>
      <form method="dialog">
        <h2>{w().secretTitle}</h2>
        <p>{w().once}</p>
        <p class="command">
          <code>{secret}</code>
          <Copy text={secret} name={w().secret} />
        </p>
        <p class="ends">
          <button type="submit" class="main">
            {w().done}
          </button>
        </p>
      </form>
    </Dialog>
  )
}
