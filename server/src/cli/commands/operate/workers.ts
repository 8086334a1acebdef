import { createHash } from 'node:crypto'
import { resolve } from 'node:path'
import {
  DEFAULT_ENROLL_TTL_SECONDS,
  type EnrollTokenShape,
  type Page,
  type RevokedShape,
  type WorkerShape,
} from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { isUuid } from '../../../contract/common.ts'
import { allPages, connect, processEnv, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { AUTHORITY_FILE, agentLine, PLACEHOLDER } from '../../output/agent-line.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { followProgress } from '../../output/follow.ts'
import { instant, printFacts, printPage, sayOrJson, table } from '../../output/print.ts'
import { out, outJson, paint, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { seconds, several } from '../../values.ts'
import { warnOfFolder } from './worker.ts'

interface DrainFlags extends JsonFlag {
  wait?: boolean
  timeout?: number
}

interface EnrollFlags extends JsonFlag {
  queue: string[]
  exec?: string
  ttl?: number
  worker?: string
}

export function addWorkers(program: Command): void {
  const workers = program.command('workers').description('enroll, list, show, drain and revoke remote workers')
  paged(workers.command('list').description('list workers, newest first')).action(list)
  workers
    .command('show <worker>')
    .description('show the worker with this id or name')
    .option('--json', 'print JSON')
    .action(show)
  workers
    .command('enroll <name>')
    .description('print the line that makes another machine a worker')
    .requiredOption('--queue <queue>', 'a queue that it may work on; repeat the option for several', several)
    .option('--exec <command>', 'the program that it runs for each job')
    .option(
      '--ttl <time>',
      `how long the line can register a machine, once (default: ${DEFAULT_ENROLL_TTL_SECONDS / 3600}h)`,
      seconds,
    )
    .option('--worker <worker-id>', 'the id of a worker that registers again and keeps its identity')
    .option('--json', 'print JSON')
    .action(enroll)
  workers
    .command('drain <worker>')
    .description('give the worker with this id or name no new jobs; the jobs that it holds go on')
    .option('--wait', 'wait until it holds no job')
    .option('--timeout <time>', 'stop waiting after this long, such as 10m', seconds)
    .option('--json', 'print JSON')
    .action(drain)
  workers
    .command('resume <worker>')
    .description('give a worker that drains jobs again')
    .option('--json', 'print JSON')
    .action(resume)
  workers
    .command('revoke <worker>')
    .description('revoke the worker with this id or name for good, and end its leases')
    .option('--json', 'print JSON')
    .action(revoke)
}

function pathOf(workerId: string): string {
  return `/v1/workers/${encodeURIComponent(workerId)}`
}

const stateOf = (worker: WorkerShape) =>
  worker.draining_since === null ? worker.state : `${worker.state}, ${drainOf(worker)}`
const drainOf = ({ live_leases }: WorkerShape) => (live_leases === 0 ? 'drained' : 'draining')
const jobsText = ({ live_leases }: WorkerShape) => `${live_leases} ${live_leases === 1 ? 'job' : 'jobs'}`

const queuesOf = ({ queues }: WorkerShape) => queues?.join(', ') ?? 'all'

async function list({ json, ...place }: ListFlags): Promise<void> {
  printPage(await connect().ask<Page<WorkerShape>>('GET', `/v1/workers${query({ ...place })}`), json, 'No workers.', {
    WORKER: (worker) => worker.worker_id,
    NAME: (worker) => worker.name,
    STATE: stateOf,
    LEASES: (worker) => worker.live_leases,
    'LAST SEEN': (worker) => instant(worker.last_seen_at),
    'TOKEN UNTIL': (worker) => instant(worker.token_expires_at),
    QUEUES: queuesOf,
  })
}

/** The worker with this id or, as names are not unique, the only one with this name. Revoked ones count only alone. */
async function find(idOrName: string): Promise<WorkerShape> {
  const { ask } = connect()
  if (isUuid(idOrName)) return ask<WorkerShape>('GET', pathOf(idOrName))
  const all: WorkerShape[] = []
  for await (const worker of allPages<WorkerShape>(ask, '/v1/workers')) if (worker.name === idOrName) all.push(worker)
  const live = all.filter(({ state }) => state !== 'revoked')
  const named = live.length > 0 ? live : all
  const [worker, ...others] = named
  if (worker === undefined)
    throw new Failure(`There is no worker ${idOrName}`, `List them: ${commandLine('workers list')}`)
  if (others.length === 0) return worker
  const candidates = table(named, {
    WORKER: ({ worker_id }) => worker_id,
    STATE: ({ state }) => state,
    REGISTERED: ({ registered_at }) => instant(registered_at),
    'LAST SEEN': ({ last_seen_at }) => instant(last_seen_at),
  })
  throw new Failure(`${named.length} workers are named ${idOrName}; give the id of one`, candidates)
}

async function show(idOrName: string, { json }: JsonFlag): Promise<void> {
  const worker = await find(idOrName)
  printFacts(worker, json, [
    ['worker', worker.worker_id],
    ['name', worker.name],
    ['state', worker.state],
    ['draining', worker.draining_since && `since ${instant(worker.draining_since)}`],
    ['queues', queuesOf(worker)],
    ['live leases', String(worker.live_leases)],
    ['registered', instant(worker.registered_at)],
    ['last seen', instant(worker.last_seen_at)],
    ['token until', instant(worker.token_expires_at)],
    ['detached', worker.detached_at && instant(worker.detached_at)],
    ['revoked', worker.revoked_at && instant(worker.revoked_at)],
    ['meta', Object.keys(worker.meta).length === 0 ? null : JSON.stringify(worker.meta)],
  ])
  if (json || worker.holds.length === 0) return
  const rows = table(worker.holds, {
    HOLDS: (run) => run.job_id,
    KIND: (run) => run.kind,
    QUEUE: (run) => run.queue,
    ATTEMPT: (run) => run.attempt,
    SINCE: (run) => instant(run.assigned_at),
  })
  out(`\n${rows}`)
  const more = worker.live_leases - worker.holds.length
  if (more > 0) say(`It holds ${more} more.`)
}

async function drain(idOrName: string, { wait = false, timeout, json }: DrainFlags): Promise<void> {
  if (timeout !== undefined && !wait) throw new Failure('--timeout goes with --wait.', undefined, EXIT.usage)
  const { worker_id } = await find(idOrName)
  const drained = await connect().ask<WorkerShape>('POST', `${pathOf(worker_id)}/drain`)
  const worker = wait ? await followDrain(drained, timeout) : drained
  if (worker.draining_since === null) throw new Failure(`Worker ${worker.name} was resumed before it held no job.`)
  const goesOn = `Worker ${worker.name} drains: it gets no new jobs, and goes on with ${jobsText(worker)}.`
  const isDone = `Worker ${worker.name} is drained: it gets no new jobs, and holds none.`
  sayOrJson(worker, json, worker.live_leases === 0 ? isDone : goesOn)
}

/** Shows how many jobs are left until the worker holds none. */
function followDrain(worker: WorkerShape, timeoutSeconds: number | undefined): Promise<WorkerShape> {
  const { worker_id, name } = worker
  let last = worker
  return followProgress({
    look: async () => {
      last = await connect().ask<WorkerShape>('GET', pathOf(worker_id))
      return last
    },
    hasEnded: ({ live_leases, draining_since }) => live_leases === 0 || draining_since === null,
    text: (now) => `${name} drains: ${jobsText(now)} left`,
    continues: {
      message: `Worker ${name} drains on without this command.`,
      advice: `See it with\n  ${commandLine(`workers show ${worker_id}`)}\nor end the drain with\n  ${commandLine(`workers resume ${worker_id}`)}`,
    },
    timeout:
      timeoutSeconds === undefined
        ? undefined
        : {
            seconds: timeoutSeconds,
            message: () => `Worker ${name} still holds ${jobsText(last)} after ${timeoutSeconds} s; it drains on.`,
          },
  })
}

async function resume(idOrName: string, { json }: JsonFlag): Promise<void> {
  const { worker_id } = await find(idOrName)
  const worker = await connect().ask<WorkerShape>('POST', `${pathOf(worker_id)}/resume`)
  sayOrJson(worker, json, `Worker ${worker.name} gets jobs again.`)
}

async function enroll(name: string, { queue: queues, exec, ttl, worker, json }: EnrollFlags): Promise<void> {
  const { url: asked, ask, open } = connect()
  warnOfFolder(exec)
  const made = await ask<EnrollTokenShape>('POST', '/v1/workers/enroll-tokens', {
    label: name,
    queues,
    ttl_seconds: ttl,
    worker_id: worker,
  })
  const url = made.public_url ?? asked
  // The other machine needs the same authority to reach the server.
  const authority = url.startsWith('https:') ? processEnv.env.NODE_EXTRA_CA_CERTS || null : null
  const sha256 = hashOf(await (await open('/agent.mjs', {})).bytes())
  const command = agentLine({ url, token: made.enroll_token, name, queues, exec, trusting: authority !== null, sha256 })
  if (json) return outJson({ ...made, command, agent_sha256: sha256 })
  out(command)
  if (authority !== null) {
    say(`First copy ${resolve(authority)} there as ${AUTHORITY_FILE}, into the folder in which the line is pasted:`)
    say('with it the line trusts the server, like this command does with NODE_EXTRA_CA_CERTS.')
  }
  say(
    `Paste this line on the machine that becomes ${name}; it needs Node 20 or later. The line registers one machine, once,`,
  )
  say(
    `until ${instant(made.expires_at)}. That machine can run it again. Keep the line secret: the first machine that runs it is registered.`,
  )
  if (exec === undefined) say(`Replace ${PLACEHOLDER} with the program that runs each job.`)
  const warning = warningOf(url)
  if (warning !== null) say(`${paint('yellow', 'warning:')} ${warning}`)
}

function hashOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex')
}

function warningOf(url: string): string | null {
  if (isLoopback(url)) return `${url} can only be reached from its own machine. Set PUBLIC_URL on the server.`
  if (new URL(url).protocol === 'https:') return null
  return `${url} is not https: agents refuse it, because anyone on the network could read their tokens. Set TLS_CERT_FILE and
TLS_KEY_FILE on the server, or PUBLIC_URL to the https address of a proxy in front of it. If you trust the whole network,
add --insecure to the line.`
}

function isLoopback(url: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(new URL(url).hostname)
}

async function revoke(idOrName: string, { json }: JsonFlag): Promise<void> {
  const { worker_id: workerId } = await find(idOrName)
  const revoked = await connect().ask<RevokedShape>('DELETE', pathOf(workerId))
  const leases = revoked.fenced_leases
  const taken = `${leases} ${leases === 1 ? 'lease was' : 'leases were'} taken away`
  sayOrJson(revoked, json, `Worker ${workerId} is revoked; ${taken}.`)
}
