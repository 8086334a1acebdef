import type { CallbackSecretShape, DeliveryShape, Page, RedrivenDeliveries } from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { DELIVERY_STATES } from '../../../core/webhooks/webhook.ts'
import { connect, query } from '../../connection/connect.ts'
import { jobIdOf } from '../../connection/job-id.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { instant, printFacts, sayOrJson } from '../../output/print.ts'
import { printDeliveries } from './webhooks.ts'

export function addCallbacks(program: Command): void {
  const callbacks = program.command('callbacks').description('messages about ends of single jobs, and their secret')
  paged(
    callbacks
      .command('list')
      .description('list the deliveries of callbacks, newest first')
      .addOption(new Option('--state <state>', 'only deliveries in this state').choices(DELIVERY_STATES)),
  ).action(async ({ json, ...place }: ListFlags & { state?: string }) => {
    printDeliveries(await connect().ask<Page<DeliveryShape>>('GET', `/v1/callbacks${query({ ...place })}`), json)
  })
  callbacks
    .command('redrive [job-id]')
    .description('send the latest message about a job again, or all dead ones')
    .option('--json', 'print JSON')
    .action(redrive)
  secretCommand(callbacks, 'secret', 'show the secret that signs messages to callbacks', 'GET', 'secret')
  const rotated = 'make a new secret; the old one stays valid for 24 hours'
  secretCommand(callbacks, 'rotate', rotated, 'POST', 'rotate-secret')
}

function secretCommand(callbacks: Command, name: string, description: string, method: 'GET' | 'POST', path: string) {
  callbacks
    .command(name)
    .description(description)
    .option('--user <user>', 'of this user, for operators (default: your own)')
    .option('--json', 'print JSON')
    .action(async ({ json, user }: JsonFlag & { user?: string }) => {
      const asked = `/v1/callbacks/${path}${query({ user_id: user })}`
      const found = await connect().ask<CallbackSecretShape>(method, asked)
      const { old_secret_until: until } = found
      printFacts(found, json, [
        ['user', found.user_id],
        ['secret', found.secret],
        ['old secret', until === null ? null : `valid until ${instant(until)}`],
      ])
    })
}

async function redrive(given: string | undefined, { json }: JsonFlag): Promise<void> {
  const connection = connect()
  if (given === undefined) {
    const done = await connection.ask<RedrivenDeliveries>('POST', '/v1/callbacks/redrive')
    return sayOrJson(done, json, `${done.redriven} dead deliveries will be sent again.`)
  }
  const jobId = await jobIdOf(connection, given)
  const sent = await connection.ask<DeliveryShape>('POST', `/v1/jobs/${encodeURIComponent(jobId)}/callback/redrive`)
  sayOrJson(sent, json, `The delivery ${sent.delivery_id} will be sent again.`)
}
