import type {
  DeliveryShape,
  Page,
  RedrivenDeliveries,
  WebhookChange,
  WebhookRequest,
  WebhookSecretShape,
  WebhookShape,
} from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { DELIVERY_STATES, WEBHOOK_EVENTS } from '../../../core/webhooks/webhook.ts'
import { connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { instant, printFacts, printPage, sayOrJson } from '../../output/print.ts'
import { say } from '../../output/terminal.ts'
import { labelFilter, secretFrom } from '../../values.ts'

export function addWebhooks(program: Command): void {
  const webhooks = program.command('webhooks').description('manage webhooks: messages about ends of jobs and alerts')
  paged(webhooks.command('list').description('list webhooks, oldest first')).action(list)
  webhooks
    .command('show <webhook-id>')
    .description('show a webhook, without its secret')
    .option('--json', 'print JSON')
    .action(async (id: string, { json }: JsonFlag) => print(await connect().ask<WebhookShape>('GET', pathOf(id)), json))
  filtered(webhooks.command('create <url>').description('create a webhook; its secret is printed once'))
    .option('--secret <@file>', 'your own secret, from @file or - for standard input', secretFrom)
    .option('--json', 'print JSON')
    .action(async (url: string, { json, ...request }: JsonFlag & Omit<WebhookRequest, 'url'>) => {
      printSecret(await connect().ask<WebhookSecretShape>('POST', '/v1/webhooks', { url, ...request }), json)
    })
  filtered(webhooks.command('update <webhook-id>').description('change a webhook; everything else stays'))
    .option('--url <url>', 'the URL that receives the messages')
    .option('--enable', 'send messages again')
    .option('--disable', 'send no messages for now')
    .option('--json', 'print JSON')
    .action(update)
  webhooks
    .command('rotate <webhook-id>')
    .description('give a webhook a new secret; the old one stays valid for 24 hours')
    .option('--secret <@file>', 'your own secret, from @file or - for standard input', secretFrom)
    .option('--json', 'print JSON')
    .action(async (id: string, { json, secret }: JsonFlag & { secret?: string }) => {
      printSecret(await connect().ask<WebhookSecretShape>('POST', `${pathOf(id)}/rotate-secret`, { secret }), json)
    })
  webhooks
    .command('test <webhook-id>')
    .description('send a message of the type webhook.test')
    .option('--json', 'print JSON')
    .action(async (id: string, { json }: JsonFlag) => {
      const sent = await connect().ask<DeliveryShape>('POST', `${pathOf(id)}/test`)
      sayOrJson(sent, json, `The delivery ${sent.delivery_id} will be sent; see: ichido webhooks deliveries ${id}`)
    })
  paged(
    webhooks
      .command('deliveries <webhook-id>')
      .description('list the deliveries of a webhook, newest first')
      .addOption(new Option('--state <state>', 'only deliveries in this state').choices(DELIVERY_STATES)),
  ).action(listDeliveries)
  webhooks
    .command('redrive <webhook-id> [delivery-id]')
    .description('send a delivery again, or all dead ones')
    .option('--json', 'print JSON')
    .action(redrive)
  webhooks
    .command('delete <webhook-id>')
    .description('delete a webhook and its deliveries')
    .option('--json', 'print JSON')
    .action(async (id: string, { json }: JsonFlag) => {
      await connect().ask('DELETE', pathOf(id))
      sayOrJson({ deleted: id }, json, `The webhook ${id} is deleted.`)
    })
}

function filtered(command: Command): Command {
  return command
    .option('--description <text>', 'what it is for')
    .addOption(new Option('--events <types...>', 'only these types of messages').choices(WEBHOOK_EVENTS))
    .option('--queue <queue>', 'only jobs of this queue')
    .option('--kind <kind>', 'only jobs of this kind')
    .option('--label <name=value>', 'only jobs with this label', labelFilter)
}

function pathOf(id: string): string {
  return `/v1/webhooks/${encodeURIComponent(id)}`
}

async function list({ json, ...place }: ListFlags): Promise<void> {
  printPage(
    await connect().ask<Page<WebhookShape>>('GET', `/v1/webhooks${query({ ...place })}`),
    json,
    'No webhooks.',
    {
      ID: (webhook) => webhook.webhook_id,
      URL: (webhook) => webhook.url,
      JOBS: jobsOf,
      STATE: (webhook) => (webhook.enabled ? 'enabled' : 'disabled'),
      DESCRIPTION: (webhook) => webhook.description,
    },
  )
}

interface UpdateFlags extends JsonFlag, Omit<WebhookChange, 'enabled'> {
  enable?: boolean
  disable?: boolean
}

async function update(id: string, { json, enable, disable, ...change }: UpdateFlags): Promise<void> {
  const enabled = enable ? { enabled: true } : disable ? { enabled: false } : {}
  print(await connect().ask<WebhookShape>('PATCH', pathOf(id), { ...change, ...enabled }), json)
}

async function listDeliveries(id: string, { json, ...place }: ListFlags & { state?: string }): Promise<void> {
  const path = `${pathOf(id)}/deliveries${query({ ...place })}`
  printDeliveries(await connect().ask<Page<DeliveryShape>>('GET', path), json)
}

export function printDeliveries(page: Page<DeliveryShape>, json: boolean | undefined): void {
  printPage(page, json, 'No deliveries.', {
    ID: (delivery) => delivery.delivery_id,
    TYPE: (delivery) => delivery.type,
    JOB: (delivery) => delivery.job_id ?? '-',
    STATE: (delivery) => delivery.state,
    TRIES: (delivery) => delivery.attempts,
    NEXT: (delivery) => (delivery.next_at === null ? '-' : instant(delivery.next_at)),
    ERROR: (delivery) => delivery.last_error ?? '',
  })
}

async function redrive(id: string, deliveryId: string | undefined, { json }: JsonFlag): Promise<void> {
  if (deliveryId === undefined) {
    const done = await connect().ask<RedrivenDeliveries>('POST', `${pathOf(id)}/redrive`)
    return sayOrJson(done, json, `${done.redriven} dead deliveries will be sent again.`)
  }
  const path = `${pathOf(id)}/deliveries/${encodeURIComponent(deliveryId)}/redrive`
  sayOrJson(await connect().ask<DeliveryShape>('POST', path), json, `The delivery ${deliveryId} will be sent again.`)
}

function jobsOf({ queue, kind, label }: WebhookShape): string {
  const parts = [queue && `queue ${queue}`, kind && `kind ${kind}`, label && `label ${label}`].filter(Boolean)
  return parts.length === 0 ? 'all' : parts.join(', ')
}

function printSecret(webhook: WebhookSecretShape, json: boolean | undefined): void {
  print(webhook, json)
  if (!json) say('Give the secret to the receiver now, because it is not shown again.')
}

function print(webhook: WebhookShape & Partial<WebhookSecretShape>, json: boolean | undefined): void {
  printFacts(webhook, json, [
    ['webhook', webhook.webhook_id],
    ['url', webhook.url],
    ['description', webhook.description || null],
    ['events', webhook.events.join(', ')],
    ['jobs', jobsOf(webhook)],
    ['state', webhook.enabled ? 'enabled' : `disabled: ${webhook.disabled_reason}`],
    ['secret', webhook.secret ?? null],
    ['old secret', webhook.old_secret_until === null ? null : `valid until ${instant(webhook.old_secret_until)}`],
    ['created', instant(webhook.created_at)],
  ])
}
