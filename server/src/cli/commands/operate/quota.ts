import type { Page, QuotaShape, ReservationShape, UserShape } from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { type JsonFlag, type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { instant, printFacts, printPage } from '../../output/print.ts'
import { limit } from '../../values.ts'

interface SetFlags extends JsonFlag {
  maxConcurrent?: number | 'none'
  costLimit?: number | 'none'
  maxBytes?: number | 'none'
  period?: 'day' | 'month'
}

interface ReservationFlags extends ListFlags {
  user?: string
  active?: boolean
}

export function addQuota(program: Command): void {
  const quota = program.command('quota').description("show and set users' limits; '*' stands for the default limits")
  paged(quota.command('list').description('list users by id, with their limits and their use')).action(list)
  quota
    .command('show <user>')
    .description('show the limits of a user and their use')
    .option('--json', 'print JSON')
    .action(async (user: string, { json }: JsonFlag) => {
      print(await connect().ask<QuotaShape>('GET', pathOf(user)), json)
    })
  quota
    .command('set <user>')
    .description('set limits; limits that you do not name stay')
    .option('--max-concurrent <n|none>', 'active jobs and live reservations at a time', limit)
    .option('--cost-limit <n|none>', 'cost in a period', limit)
    .option('--max-bytes <n|none>', 'stored payloads, artifacts and logs', limit)
    .addOption(new Option('--period <period>', 'the period of the cost limit, in UTC').choices(['day', 'month']))
    .option('--json', 'print JSON')
    .action(async (user: string, flags: SetFlags) => print(await set(connect(), user, flags), flags.json))
  quota
    .command('clear <user>')
    .description("remove a user's limits; the default limits apply again")
    .option('--json', 'print JSON')
    .action(async (user: string, { json }: JsonFlag) => {
      print(await connect().ask<QuotaShape>('DELETE', pathOf(user)), json)
    })
  const reservations = quota
    .command('reservations')
    .description('list reservations, newest first')
    .option('--user <id>')
    .option('--active', 'only reservations that hold a slot now')
  paged(reservations).action(listReservations)
}

function pathOf(user: string): string {
  return `/v1/quotas/${encodeURIComponent(user)}`
}

async function set({ ask }: Connection, user: string, flags: SetFlags): Promise<QuotaShape> {
  const { maxConcurrent, costLimit, period, maxBytes } = flags
  if ([maxConcurrent, costLimit, period, maxBytes].every((flag) => flag === undefined)) {
    throw new Failure('Nothing to set.', 'Name --max-concurrent, --cost-limit, --period or --max-bytes.', EXIT.usage)
  }
  const before = await ask<QuotaShape>('GET', pathOf(user))
  return ask<QuotaShape>('PUT', pathOf(user), {
    max_concurrent: maxConcurrent === 'none' ? null : (maxConcurrent ?? before.max_concurrent),
    cost_limit: costLimit === 'none' ? null : (costLimit ?? before.cost_limit),
    period: period ?? before.period,
    max_bytes: maxBytes === 'none' ? null : (maxBytes ?? before.max_bytes),
  })
}

function print(quota: QuotaShape, json: boolean | undefined): void {
  printFacts(quota, json, [
    ['user', quota.user_id],
    ['limits', quota.custom ? 'its own' : "the default limits, of '*'"],
    ['max concurrent', quota.max_concurrent === null ? 'none' : String(quota.max_concurrent)],
    ['active jobs', String(quota.active_jobs)],
    ['active reservations', String(quota.active_reservations)],
    ['cost limit', quota.cost_limit === null ? 'none' : `${quota.cost_limit} a ${quota.period}`],
    ['spent', `${quota.spent} this ${quota.period}`],
    ['max bytes', quota.max_bytes === null ? 'none' : String(quota.max_bytes)],
    ['bytes stored', quota.used_bytes === null ? 'not counted' : String(quota.used_bytes)],
  ])
}

async function list({ json, ...rest }: ListFlags): Promise<void> {
  const page = await connect().ask<Page<UserShape>>('GET', `/v1/users${query({ ...rest })}`)
  printPage(page, json, 'No users.', {
    USER: (user) => user.user_id,
    LIMITS: (user) => (user.custom ? 'own' : "of '*'"),
    JOBS: (user) => user.active_jobs,
    RESERVED: (user) => user.active_reservations,
    LIMIT: (user) => user.max_concurrent ?? '-',
    SPENT: (user) => user.spent,
    'COST LIMIT': (user) => (user.cost_limit === null ? '-' : `${user.cost_limit} a ${user.period}`),
    BYTES: (user) => user.used_bytes ?? '-',
    'MAX BYTES': (user) => user.max_bytes ?? '-',
  })
}

async function listReservations({ json, user, ...rest }: ReservationFlags): Promise<void> {
  const path = `/v1/reservations${query({ ...rest, user_id: user })}`
  printPage(await connect().ask<Page<ReservationShape>>('GET', path), json, 'No reservations.', {
    RESERVATION: (reservation) => reservation.reservation_id,
    STATE: (reservation) => reservation.state,
    USER: (reservation) => reservation.user_id,
    CREATED: (reservation) => instant(reservation.created_at),
    EXPIRES: (reservation) => instant(reservation.expires_at),
    JOB: (reservation) => reservation.job_id ?? '-',
  })
}
