/** The type of a message that a webhook can receive. `webhook.test` is sent only on request. */
export type WebhookEvent =
  | 'job.succeeded'
  | 'job.failed'
  | 'job.timed_out'
  | 'job.canceled'
  | 'alert.opened'
  | 'alert.closed'

/** The state of a delivery: `dead` means that all tries failed, and that a person can redrive it. */
export type DeliveryState = 'pending' | 'delivered' | 'dead'

/** A webhook: a URL that receives signed messages about the ends of jobs and about alerts. */
export interface WebhookShape {
  webhook_id: string
  url: string
  description: string
  events: WebhookEvent[]
  /** Only jobs of this queue; null: of all queues. */
  queue: string | null
  /** Only jobs of this kind; null: of all kinds. */
  kind: string | null
  /** Only jobs with this label, as name:value; null: all jobs. */
  label: string | null
  enabled: boolean
  /** Why the webhook is disabled; null while it is enabled. */
  disabled_reason: string | null
  /** Until when messages are also signed with the secret before the last rotation. */
  old_secret_until: string | null
  user_id: string
  created_at: string
  updated_at: string
}

/** A new webhook. */
export interface WebhookRequest {
  url: string
  description?: string | undefined
  /** Default: all ends of jobs, and no alerts. */
  events?: WebhookEvent[] | undefined
  queue?: string | null | undefined
  kind?: string | null | undefined
  /** A label of the job, as name:value. */
  label?: string | null | undefined
  /** `whsec_` and 24 to 64 bytes in Base64; default: the server makes one. */
  secret?: string | undefined
}

/** A change of a webhook: fields that are left out stay. */
export interface WebhookChange extends Omit<WebhookRequest, 'url' | 'secret'> {
  url?: string | undefined
  /** False: the webhook gets no new deliveries, and its pending ones wait. */
  enabled?: boolean | undefined
}

/** A webhook with its secret, which is shown only once. */
export interface WebhookSecretShape extends WebhookShape {
  secret: string
}

/** One message for one webhook, or for the callback of a job. Every try has the same id. */
export interface DeliveryShape {
  /** The header `webhook-id`. */
  delivery_id: string
  /** Null: it goes to the callback of a job. */
  webhook_id: string | null
  type: WebhookEvent | 'webhook.test'
  /** The job of the message; null for alerts and tests. */
  job_id: string | null
  state: DeliveryState
  /** How often it was sent. */
  attempts: number
  /** When it is sent next; null unless it is pending. */
  next_at: string | null
  /** The status of the last answer; null if there was none. */
  last_status: number | null
  last_error: string | null
  created_at: string
  ended_at: string | null
}

/** The answer to a call that redrives dead deliveries. */
export interface RedrivenDeliveries {
  redriven: number
}

/** The callback of a job: a URL that receives a signed message about each end of the job. */
export interface CallbackShape {
  url: string
  /** About the latest end of the job; null: the job has not ended, or the delivery was removed. */
  delivery: DeliveryShape | null
}

/** What messages to the callbacks of a user's jobs are signed with. */
export interface CallbackSecretShape {
  user_id: string
  secret: string
  /** Until when messages are also signed with the secret before the last rotation. */
  old_secret_until: string | null
}
