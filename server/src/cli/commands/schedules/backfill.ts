import type { BackfillShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { followProgress } from '../../output/follow.ts'
import { instant, printPage, sayOrJson } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { NOW, pastOf, pastOrNow } from '../../values.ts'

interface BackfillFlags extends JsonFlag {
  from: string
  to: string
  dryRun?: boolean
  wait: boolean
}

interface Counted {
  matched: number
  made_before: number
  skipped: number
  would_make: number
}

export function addBackfill(definitions: Command): void {
  definitions
    .command('backfill <name>')
    .description('make the ticks of a past range that the ledger does not have; Ctrl-C leaves it running')
    .requiredOption('--from <when>', 'ticks at this instant or later; or how long ago, such as 2h', pastOf)
    .requiredOption('--to <when>', 'ticks before this instant; or how long ago (default: now)', pastOrNow)
    .option('--dry-run', 'only count, change nothing')
    .option('--no-wait', 'do not wait for the end')
    .option('--json', 'print JSON')
    .action(backfill)
  const listed = definitions.command('backfills <name>')
  paged(listed.description('list the backfills of a definition, newest first')).action(list)
  definitions
    .command('progress <name> <backfill-id>')
    .description('show the progress of a backfill until it is done; Ctrl-C leaves it running')
    .option('--json', 'print JSON')
    .action(async (name: string, backfillId: string, { json }: JsonFlag) => {
      finish(await follow(connect(), name, backfillId), json)
    })
  definitions
    .command('abort <name> <backfill-id>')
    .description('abort a backfill; jobs that it has made stay')
    .option('--json', 'print JSON')
    .action(async (name: string, backfillId: string, { json }: JsonFlag) => {
      finish(await connect().ask<BackfillShape>('POST', `${pathOf(name, backfillId)}/abort`), json)
    })
}

function pathOf(name: string, backfillId: string): string {
  return `/v1/definitions/${encodeURIComponent(name)}/backfills/${encodeURIComponent(backfillId)}`
}

async function backfill(name: string, { dryRun, wait, json, ...range }: BackfillFlags): Promise<void> {
  const from = range.from
  const to = range.to === NOW ? undefined : range.to
  const connection = connect()
  const path = `/v1/definitions/${encodeURIComponent(name)}/backfill`
  if (dryRun) {
    const counted = await connection.ask<Counted>('POST', path, { from, to, dry_run: true })
    return sayOrJson(
      counted,
      json,
      `${counted.would_make} of ${counted.matched} ticks would be made${leftOut(counted)}.`,
    )
  }
  const begun = await connection.ask<BackfillShape>('POST', path, { from, to })
  if (wait) return finish(await follow(connection, name, begun.backfill_id), json)
  if (json) return outJson(begun)
  out(begun.backfill_id)
  say(`See it with ${commandLine(`definitions progress ${name} ${begun.backfill_id}`)}`)
}

function follow(connection: Connection, name: string, backfillId: string): Promise<BackfillShape> {
  const line = (verb: string) => `  ${commandLine(`definitions ${verb} ${name} ${backfillId}`)}`
  return followProgress({
    look: () => connection.ask<BackfillShape>('GET', pathOf(name, backfillId)),
    hasEnded: ({ state }) => state !== 'running',
    text: progressText,
    continues: {
      message: `Backfill ${backfillId} continues without this command.`,
      advice: ['See it with', line('progress'), 'or end it with', line('abort')].join('\n'),
    },
  })
}

function progressText(backfill: BackfillShape): string {
  return `${backfill.made} of ${backfill.matched} ticks made${leftOut(backfill)}`
}

/** The ticks that a backfill does not make. */
function leftOut({ made_before, skipped }: Pick<BackfillShape, 'made_before' | 'skipped'>): string {
  const made = made_before > 0 ? `, ${made_before} made before` : ''
  return skipped > 0 ? `${made}, ${skipped} skipped (a backfill does not make these)` : made
}

function finish(backfill: BackfillShape, json: boolean | undefined): void {
  sayOrJson(backfill, json, `Backfill ${backfill.backfill_id} is ${backfill.state}: ${progressText(backfill)}`)
}

async function list(name: string, { json, ...place }: ListFlags): Promise<void> {
  const path = `/v1/definitions/${encodeURIComponent(name)}/backfills${query({ ...place })}`
  printPage(await connect().ask<Page<BackfillShape>>('GET', path), json, 'No backfills.', {
    BACKFILL: (backfill) => backfill.backfill_id,
    STATE: (backfill) => backfill.state,
    BY: (backfill) => backfill.actor,
    FROM: (backfill) => instant(backfill.from),
    TO: (backfill) => instant(backfill.to),
    PROGRESS: progressText,
  })
}
