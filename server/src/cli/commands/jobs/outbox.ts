import type { Command } from 'commander'
import { connect } from '../../connection/connect.ts'
import { type KeptJob, KeptJobs, kindOf, toShape } from '../../connection/outbox.ts'
import type { JsonFlag } from '../../flags.ts'
import { Failure } from '../../output/exit.ts'
import { instant, printPage, sayOrJson } from '../../output/print.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { ids } from '../../values.ts'

export function addOutbox(program: Command): void {
  const outbox = program
    .command('outbox')
    .description('list, send and drop the submissions that `submit --offline` kept on this machine')
  outbox
    .command('list')
    .description('list the kept submissions, oldest first')
    .option('--json', 'print JSON')
    .action(list)
  outbox
    .command('flush')
    .argument('[id...]', 'failed items to send again', ids)
    .description('send the queued items in order, and the failed items that you name')
    .option('--json', 'print JSON')
    .action(flush)
  outbox
    .command('drop')
    .argument('<id...>', 'items to delete', ids)
    .description('delete items, even if they were not sent')
    .option('--json', 'print JSON')
    .action(drop)
}

async function opened(work: (kept: KeptJobs) => Promise<void>): Promise<void> {
  const kept = new KeptJobs(connect())
  try {
    await work(kept)
  } finally {
    await kept.close()
  }
}

async function list({ json }: JsonFlag): Promise<void> {
  await opened(async (kept) => {
    const items = await kept.list()
    if (json) outJson({ data: items.map(toShape) })
    else print(items)
    await sayOtherOutboxes(kept)
    if (!json && items.some(({ status }) => status === 'failed')) {
      say(`Send failed items again with ${commandLine('outbox flush ITEM')}, or delete them with outbox drop`)
    }
  })
}

async function sayOtherOutboxes(kept: KeptJobs): Promise<void> {
  const others = await kept.otherOutboxes()
  for (const { path, count } of others) say(`${count} more kept for this server with another ICHIDO_TOKEN: ${path}`)
  if (others.length === 0) return
  say(
    'To send them, set ICHIDO_TOKEN to that token. If your current token replaced it, for the same user, and its outbox is',
  )
  say(`empty, move the file to ${kept.path}`)
}

async function flush(ids: string[], { json }: JsonFlag): Promise<void> {
  await opened(async (kept) => {
    for (const { id, status } of await find(kept, ids)) if (status === 'failed') await kept.retry(id)
    const tried = await kept.flush()
    const left = (await kept.list()).filter(
      ({ id, status }) => status === 'queued' || tried.some((item) => item.id === id),
    )
    if (json) outJson({ data: tried.map(toShape), left: left.length })
    else {
      for (const { answer } of tried) if (answer !== undefined) out(answer.response.job_id)
      say(`${tried.filter(({ status }) => status === 'sent').length} sent.`)
    }
    if (left.length > 0) throw stillThere(kept, left)
  })
}

function stillThere(kept: KeptJobs, left: readonly KeptJob[]): Failure {
  const [first] = left
  const thrown = first === undefined ? undefined : kept.errorOf(first)
  const why = thrown instanceof Error ? thrown.message : (first?.error ?? 'No server answers')
  return new Failure(`${left.length} not sent: ${why}`, `See \`${commandLine('outbox list')}\``)
}

async function drop(ids: string[], { json }: JsonFlag): Promise<void> {
  await opened(async (kept) => {
    const items = await find(kept, ids)
    for (const { id } of items) await kept.drop(id)
    sayOrJson({ data: items.map(toShape) }, json, `${items.length} dropped.`)
  })
}

/** Throws for an unknown id before anything is changed. */
async function find(kept: KeptJobs, ids: readonly string[]): Promise<KeptJob[]> {
  const items = await kept.list()
  return [...new Set(ids)].map((id) => {
    const item = items.find((kept) => kept.id === id)
    if (item === undefined)
      throw new Failure(`There is no item ${id} in the outbox`, `See \`${commandLine('outbox list')}\``)
    return item
  })
}

function print(items: readonly KeptJob[]): void {
  printPage({ data: items }, false, 'The outbox is empty.', {
    ITEM: ({ id }) => id,
    STATUS: ({ status }) => status,
    ATTEMPTS: ({ attempts }) => attempts,
    SAVED: ({ savedAtMs }) => instant(new Date(savedAtMs).toISOString()),
    KIND: ({ body }) => kindOf(body),
    KEY: ({ key }) => key,
    ERROR: ({ error }) => error ?? '',
  })
}
