import type { QueueShape } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { allPages, connect } from '../../connection/connect.ts'
import type { JsonFlag } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { instant, printFacts, printPage } from '../../output/print.ts'
import { limit, limitOfTime } from '../../values.ts'

interface SetFlags extends JsonFlag {
  maxConcurrent?: number | 'none'
  leaseTtl?: number | 'none'
  continuation?: number | 'none'
  resultTtl?: number | 'none'
  fatalCodes?: string[] | 'none'
}

type Changes = Partial<
  Omit<QueueShape, 'name' | 'paused_at' | 'ready' | 'delayed' | 'running' | 'oldest_ready_seconds'>
>

export function addQueues(program: Command): void {
  const queues = program.command('queues').description('list, pause and limit queues')
  queues
    .command('list')
    .description('list the queues that have work or settings')
    .option('--json', 'print JSON')
    .action(list)
  queues
    .command('show <queue>')
    .description('show the work and the settings of a queue')
    .option('--json', 'print JSON')
    .action(async (queue: string, { json }: JsonFlag) => {
      print(await connect().ask<QueueShape>('GET', pathOf(queue)), json)
    })
  for (const [verb, paused, about] of [
    ['pause', true, 'pause a queue; runs that workers hold continue'],
    ['resume', false, 'resume a queue'],
  ] as const) {
    queues
      .command(`${verb} <queue>`)
      .description(about)
      .option('--json', 'print JSON')
      .action(async (queue: string, { json }: JsonFlag) => print(await put(queue, { paused }), json))
  }
  queues
    .command('set <queue>')
    .description('set limits and times; settings that you do not name stay')
    .option('--max-concurrent <n|none>', 'how many runs workers may hold at a time, over all nodes', limit)
    .option('--lease-ttl <time|none>', 'the lease time of jobs that do not set their own', limitOfTime)
    .option('--continuation <time|none>', 'how long a job waits for a silent worker after its lease', limitOfTime)
    .option('--result-ttl <time|none>', 'how long jobs can be read after they ended', limitOfTime)
    .option('--fatal-codes <codes|none>', 'error codes that are not retried, separated by commas', codes)
    .option('--json', 'print JSON')
    .action(set)
}

function codes(text: string): string[] | 'none' {
  return text === 'none' ? text : text.split(',').map((code) => code.trim())
}

function pathOf(queue: string): string {
  return `/v1/queues/${encodeURIComponent(queue)}`
}

function put(queue: string, changes: Changes): Promise<QueueShape> {
  return connect().ask<QueueShape>('PUT', pathOf(queue), changes)
}

async function set(queue: string, flags: SetFlags): Promise<void> {
  const { json, maxConcurrent, leaseTtl, continuation, resultTtl, fatalCodes } = flags
  const named = {
    max_concurrent: maxConcurrent,
    lease_ttl_seconds: leaseTtl,
    continuation_seconds: continuation,
    result_ttl_seconds: resultTtl,
    fatal_error_codes: fatalCodes,
  }
  const changes = Object.entries(named).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, value === 'none' ? null : value] as const],
  )
  if (changes.length === 0) {
    const hint = 'Name --max-concurrent, --lease-ttl, --continuation, --result-ttl or --fatal-codes.'
    throw new Failure('Nothing to set.', hint, EXIT.usage)
  }
  print(await put(queue, Object.fromEntries(changes)), json)
}

async function list({ json }: JsonFlag): Promise<void> {
  const queues: QueueShape[] = []
  for await (const queue of allPages<QueueShape>(connect().ask, '/v1/queues')) queues.push(queue)
  printPage({ data: queues, next_cursor: null }, json, 'No queues.', {
    QUEUE: (queue) => queue.name,
    READY: (queue) => queue.ready,
    DELAYED: (queue) => queue.delayed,
    RUNNING: (queue) => queue.running,
    LIMIT: (queue) => queue.max_concurrent ?? '-',
    OLDEST: (queue) => (queue.oldest_ready_seconds === null ? '-' : `${Math.round(queue.oldest_ready_seconds)} s`),
    '': (queue) => (queue.paused ? 'paused' : ''),
  })
}

function print(queue: QueueShape, json: boolean | undefined): void {
  const time = (seconds: number | null, otherwise: string) => (seconds === null ? otherwise : `${seconds} s`)
  printFacts(queue, json, [
    ['queue', queue.name],
    ['paused', queue.paused ? `since ${instant(queue.paused_at)}` : 'no'],
    ['ready', String(queue.ready)],
    ['delayed', String(queue.delayed)],
    ['running', String(queue.running)],
    ['oldest waits', queue.oldest_ready_seconds === null ? null : `${Math.round(queue.oldest_ready_seconds)} s`],
    ['max concurrent', queue.max_concurrent === null ? 'none' : String(queue.max_concurrent)],
    ['lease', time(queue.lease_ttl_seconds, '60 s, unless a job sets its own')],
    ['continuation', time(queue.continuation_seconds, '60 s, unless a job sets its own')],
    ['result kept', time(queue.result_ttl_seconds, 'as long as the job')],
    ['not retried', queue.fatal_error_codes === null ? 'none' : queue.fatal_error_codes.join(', ')],
  ])
}
