import { HOOK_SCHEMES, type HookRequest, type HookShape, type Page, type PutHookResponse } from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { instant, printFacts, printPage, sayOrJson } from '../../output/print.ts'
import { say } from '../../output/terminal.ts'
import { secretFrom } from '../../values.ts'

export function addHooks(program: Command): void {
  const hooks = program.command('hooks').description('manage hooks: URLs that turn signed webhooks into triggers')
  paged(hooks.command('list').description('list hooks by name')).action(list)
  hooks
    .command('show <name>')
    .description('show a hook, without its secret')
    .option('--json', 'print JSON')
    .action(async (name: string, { json }: JsonFlag) => {
      const connection = connect()
      print(await connection.ask<HookShape>('GET', pathOf(name)), connection.url, json)
    })
  hooks
    .command('put <name>')
    .description('create or change a hook; a new secret is printed once')
    .requiredOption('--topic <topic>', 'the topic of its triggers')
    .addOption(
      new Option('--scheme <scheme>', 'the signature scheme of the sender')
        .choices(HOOK_SCHEMES)
        .makeOptionMandatory(true),
    )
    .option('--secret <@file>', 'the secret that the sender gave you, from @file or - for standard input', secretFrom)
    .option('--json', 'print JSON')
    .action(put)
  hooks
    .command('delete <name>')
    .description('delete a hook; its triggers stay')
    .option('--json', 'print JSON')
    .action(async (name: string, { json }: JsonFlag) => {
      await connect().ask('DELETE', pathOf(name))
      sayOrJson({ deleted: name }, json, `The hook ${name} is deleted.`)
    })
}

function pathOf(name: string): string {
  return `/v1/hooks/${encodeURIComponent(name)}`
}

async function list({ json, ...place }: ListFlags): Promise<void> {
  printPage(await connect().ask<Page<HookShape>>('GET', `/v1/hooks${query({ ...place })}`), json, 'No hooks.', {
    NAME: (hook) => hook.name,
    SCHEME: (hook) => hook.scheme,
    TOPIC: (hook) => hook.topic,
    USER: (hook) => hook.user_id,
    CREATED: (hook) => instant(hook.created_at),
  })
}

async function put(name: string, { json, ...request }: JsonFlag & HookRequest): Promise<void> {
  const connection = connect()
  const made = await connection.ask<PutHookResponse>('PUT', pathOf(name), request)
  print(made, connection.url, json)
  if (made.secret !== null && !json) say('Give the secret to the sender now, because it is not shown again.')
}

function print(hook: HookShape & Partial<PutHookResponse>, url: string, json: boolean | undefined): void {
  printFacts(hook, json, [
    ['hook', hook.name],
    ['address', `${url}${pathOf(hook.name)}`],
    ['scheme', hook.scheme],
    ['topic', hook.scheme === 'github' ? `${hook.topic}.<event>` : hook.topic],
    ['user', hook.user_id],
    ['secret', hook.secret ?? null],
    ['created', instant(hook.created_at)],
  ])
}
