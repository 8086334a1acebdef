import type { JobFilterShape } from '../../sdk/src/protocol/index.ts'
import { PAGES } from '../../server/src/http/dashboard/dashboard-routes.ts'
import type { HttpConnection } from '../ichido/http-connection.ts'
import { CALM_QUEUE } from './rows.ts'

interface Ids {
  running: string
  failed: string
  succeeded: string
  webhook: string
}

/** One value for each filter of the list of jobs. A new filter must be added here. */
const FILTERS: Record<Exclude<keyof JobFilterShape, 'state' | 'short_id'>, string> = {
  queue: 'queue-1',
  kind: 'kind-3',
  user_id: 'user-7',
  label: 'team:team-3',
  key: 'key-8000',
  error_code: 'OOM',
  text: 'no job has this text',
  waiting_longer_than_seconds: '60',
  created_after: '2026-01-01T00:00:00Z',
  created_before: '2100-01-01T00:00:00Z',
}
const STATES = ['PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED']
const SEARCHES = [
  ...Object.entries(FILTERS).map(([name, value]) => ({ [name]: value })),
  ...STATES.map((state) => ({ state })),
  { state: 'FAILED', queue: 'queue-1' },
  { state: 'FAILED', queue: CALM_QUEUE },
  { queue: 'queue-1', kind: 'kind-4' },
  { user_id: 'user-7', label: 'team:team-3' },
  { error_code: 'OOM', text: 'no job has this text' },
]

/** All pages, and those with filters. The names are the same in each store; the ids are not. */
export async function addressesOf(connection: HttpConnection): Promise<Map<string, string>> {
  const ids = await findIds(connection)
  const pages = PAGES.flatMap((path) => {
    if (path === '/jobs/:id') {
      const { running, failed, succeeded } = ids
      const jobs = Object.entries({ running, failed, succeeded })
      return jobs.map(([name, id]) => [`/jobs/:id, ${name}`, `/jobs/${id}`] as const)
    }
    return [[path, path.replace(':name', 'nightly-3').replace(':id', ids.webhook)] as const]
  })
  const searches = SEARCHES.map((search) => `/jobs?${new URLSearchParams(search)}`)
  const others = ['/?range=7d', '/?range=24h&queue=queue-1', '/dead-letters?text=step', '/dead-letters?error_code=OOM']
  return new Map([
    ...pages,
    ...[...searches, ...others, '/audit?action=job.cancel'].map((path) => [path, path] as const),
  ])
}

async function findIds(connection: HttpConnection): Promise<Ids> {
  const first = async (path: string, name: string): Promise<string> => {
    const { data } = JSON.parse(await connection.get(path)) as { data: Record<string, string>[] }
    const id = data[0]?.[name]
    if (id === undefined) throw new Error(`${path} is empty`)
    return id
  }
  const job = (state: string) => first(`/v1/jobs?limit=1&state=${state}`, 'job_id')
  return {
    running: await job('RUNNING'),
    failed: await job('FAILED'),
    succeeded: await job('SUCCEEDED'),
    webhook: await first('/v1/webhooks?limit=1', 'webhook_id'),
  }
}
