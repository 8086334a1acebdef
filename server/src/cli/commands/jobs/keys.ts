import type { KeyShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { instant, table } from '../../output/table.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { number, wholeNumber } from '../../values.ts'
import { sayMore } from './jobs.ts'

interface ListFlags {
  active?: boolean
  limit?: number
  cursor?: string
  json?: boolean
}

type Keys = Pick<Page<KeyShape>, 'data'>

export function addKeys(program: Command): void {
  const keys = program.command('keys').description('list, show and extend idempotency keys')
  keys
    .command('list')
    .description('list keys, newest first')
    .option('--active', 'only keys that have not expired')
    .option('--limit <n>', 'at most this many (default: 50)', wholeNumber)
    .option('--cursor <cursor>', 'continue where the last list ended')
    .option('--json', 'print JSON')
    .action(async ({ json, ...filter }: ListFlags) => {
      const page = await connect().ask<Page<KeyShape>>('GET', `/v1/idempotency-keys${query({ ...filter })}`)
      if (json) return outJson(page)
      if (page.data.length === 0) return say('No keys.')
      print(page)
      sayMore(page.next_cursor)
    })
  keys
    .command('show <key>')
    .description('show a key and its job')
    .option('--json', 'print JSON')
    .action(async (key: string, { json }: { json?: boolean }) => {
      const found = await connect().ask<Keys>('GET', pathOf(key))
      if (json) outJson(found)
      else print(found)
    })
  keys
    .command('extend <key>')
    .description('extend the lifetime of a key; it is never shortened')
    .requiredOption('--ttl-hours <hours>', 'the lifetime from now on', number)
    .option('--json', 'print JSON')
    .action(async (key: string, { ttlHours, json }: { ttlHours: number; json?: boolean }) => {
      const found = await connect().ask<Keys>('PATCH', pathOf(key), { ttl_hours: ttlHours })
      if (json) outJson(found)
      else print(found)
    })
}

/** Keys of CI systems are full of slashes. */
function pathOf(key: string): string {
  return `/v1/idempotency-keys/${encodeURIComponent(key)}`
}

function print({ data }: Keys): void {
  out(
    table(
      ['KEY', 'JOB', 'USER', 'OPERATION', 'ACTIVE', 'CREATED', 'EXPIRES'],
      data.map((key) => [
        key.key,
        key.job_id,
        key.user_id,
        key.operation,
        key.active ? 'yes' : 'no',
        instant(key.created_at),
        instant(key.expires_at),
      ]),
    ),
  )
}
