import type { CallbackShape, DeliveryShape, JobDetail } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { Instant } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { useMayChange } from '../server/session.ts'
import { formatNumber, words } from '../words.ts'
import { DeliveryPill } from './webhooks-part.tsx'

const w = words(
  {
    callback: 'Callback',
    url: 'URL',
    message: 'Message',
    tries: 'Tries',
    answer: 'Last answer',
    next: 'Next try',
    none: 'There is no message yet. A message is sent when the job has ended.',
    redrive: 'Redrive',
    redriveTitle: 'Send the message again',
    redriveText: 'The server sends the message again, with the same id.',
    redriven: 'The message will be sent again.',
  },
  {
    callback: 'コールバック',
    url: 'URL',
    message: 'メッセージ',
    tries: '試行',
    answer: '最後の応答',
    next: '次の試行',
    none: 'メッセージはまだありません。ジョブが終わると送られます。',
    redrive: '再送',
    redriveTitle: 'メッセージを再送する',
    redriveText: '同じ ID でメッセージをもう一度送ります。',
    redriven: 'メッセージを再送します。',
  },
)

interface CallbackProps {
  job: JobDetail
  callback: CallbackShape
}

/** Where the ends of the job are told, and whether the latest message arrived. */
export function Callback({ job, callback: { url, delivery } }: CallbackProps) {
  const mayChange = useMayChange(job.user_id)
  const [asking, ask] = useState(false)
  return (
    <section class="card pad" aria-label={w().callback}>
      <h3 class="line">
        {w().callback}
        {delivery !== null && <DeliveryPill of={delivery} />}
      </h3>
      <dl class="facts">
        <dt>{w().url}</dt>
        <dd class="wrap">{url}</dd>
        {delivery !== null && <DeliveryFacts of={delivery} />}
      </dl>
      {delivery === null && <p class="faint">{w().none}</p>}
      {delivery !== null && mayChange && (
        <button type="button" class="quiet" onClick={() => ask(true)}>
          {w().redrive}
        </button>
      )}
      {asking && (
        <ActionDialog
          title={w().redriveTitle}
          action={w().redrive}
          run={async () => {
            await send('POST', `/v1/jobs/${job.job_id}/callback/redrive`)
            notify(w().redriven)
            void readAgain()
          }}
          onClose={() => ask(false)}
        >
          <p>{w().redriveText}</p>
        </ActionDialog>
      )}
    </section>
  )
}

function DeliveryFacts({ of: { type, attempts, last_error, last_status, next_at } }: { of: DeliveryShape }) {
  return (
    <>
      <dt>{w().message}</dt>
      <dd>{type}</dd>
      <dt>{w().tries}</dt>
      <dd>{formatNumber(attempts)}</dd>
      {attempts > 0 && (
        <>
          <dt>{w().answer}</dt>
          <dd class="wrap">{last_error ?? last_status}</dd>
        </>
      )}
      {next_at !== null && (
        <>
          <dt>{w().next}</dt>
          <dd>
            <Instant of={next_at} />
          </dd>
        </>
      )}
    </>
  )
}
