import type { KeyShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { instant, printPage } from '../../output/print.ts'
import { hours } from '../../values.ts'

interface KeyListFlags extends ListFlags {
  active?: boolean
}

type Keys = Pick<Page<KeyShape>, 'data'> & Partial<Page<KeyShape>>

export function addKeys(program: Command): void {
  const keys = program.command('keys').description('list, show and extend idempotency keys')
  paged(
    keys.command('list').description('list keys, newest first').option('--active', 'only keys that have not expired'),
  ).action(async ({ json, ...filter }: KeyListFlags) =>
    print(await connect().ask<Page<KeyShape>>('GET', `/v1/idempotency-keys${query({ ...filter })}`), json),
  )
  keys
    .command('show <key>')
    .description('show a key and its job')
    .option('--json', 'print JSON')
    .action(async (key: string, { json }: JsonFlag) => print(await connect().ask<Keys>('GET', pathOf(key)), json))
  keys
    .command('extend <key>')
    .description('extend the lifetime of a key; it is never shortened')
    .requiredOption('--ttl-hours <time>', 'the lifetime from now on, such as 7d; a plain number is in hours', hours)
    .option('--json', 'print JSON')
    .action(async (key: string, { ttlHours, json }: JsonFlag & { ttlHours: number }) =>
      print(await connect().ask<Keys>('PATCH', pathOf(key), { ttl_hours: ttlHours }), json),
    )
}

/** Encoded, because keys of CI systems contain slashes. */
function pathOf(key: string): string {
  return `/v1/idempotency-keys/${encodeURIComponent(key)}`
}

function print(keys: Keys, json: boolean | undefined): void {
  printPage(keys, json, 'No keys.', {
    KEY: (key) => key.key,
    JOB: (key) => key.job_id,
    USER: (key) => key.user_id,
    OPERATION: (key) => key.operation,
    ACTIVE: (key) => (key.active ? 'yes' : 'no'),
    CREATED: (key) => instant(key.created_at),
    EXPIRES: (key) => instant(key.expires_at),
  })
}
