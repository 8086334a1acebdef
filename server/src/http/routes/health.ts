import { JOB_STATES } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { queueRate, series, seriesQuery, stats } from '../../contract/system.ts'
import type { SeriesRange } from '../../core/limits/series.ts'
import { sharedRead, within } from '../../services/wait.ts'
import type { Metrics } from '../metrics/metrics.ts'
import { rationedRead, STORE_TIMEOUT_MS, type StoreCheck } from '../metrics/store-check.ts'
import { answers } from '../server/openapi.ts'
import type { ApiInstance, RouteContext } from './context.ts'

const tags = ['health']
/** Each queue has several series, so only the first ones by name are shown. */
const COUNTED_QUEUES_MAX = 1_000
const health = z.object({ status: z.literal('ok') })
const readiness = z.object({
  status: z.enum(['ready', 'degraded', 'not ready']),
  checks: z.object({
    store: z.string(),
    artifacts: z.literal('full').optional(),
    redis: z.enum(['ok', 'away', 'full']).optional(),
    server: z.enum(['ok', 'stopping']),
  }),
})

interface HealthOptions {
  metrics: Metrics
  checkStore: StoreCheck
}

export function healthRoutes(
  app: ApiInstance,
  { services, draining, feeds }: RouteContext,
  { metrics, checkStore }: HealthOptions,
): void {
  const { world, relay, disks, certificateEndsAtMs, fullDisks } = services.deps
  const counts = rationedRead(world, () => services.jobs.counts())
  const workerCounts = rationedRead(world, () => services.workers.counts())
  const queueCounts = rationedRead(world, async () => (await services.queues.list(COUNTED_QUEUES_MAX, null)).data)
  const deadLetterCounts = rationedRead(world, () => services.deadLetters.counts())
  const scheduleCounts = rationedRead(world, () => services.occurrences.counts())
  const triggerCounts = rationedRead(world, () => services.triggers.counts())
  const webhookCounts = rationedRead(world, () => services.webhooks.counts())
  const alertCounts = rationedRead(world, () => services.alerts.counts())
  const queuesIn = (range: SeriesRange) => rationedRead(world, () => services.series.queues(range))
  const rates = rationedRead(world, () => services.series.rates())
  const seriesQueues = { '15m': queuesIn('15m'), '1h': queuesIn('1h'), '24h': queuesIn('24h'), '7d': queuesIn('7d') }
  /** Null: the store did not answer in time. */
  const inTime = <T>(read: Promise<T>) => within(world, STORE_TIMEOUT_MS, read, null).catch(() => null)
  /** If the store is down, nothing is read, because each read would wait for it. */
  async function readCounts(storeUp: boolean) {
    const read = <T>(count: () => Promise<T>) => (storeUp ? inTime(count()) : null)
    const [jobs, workers, queues, deadLetters, schedules, triggers, webhooks, alerts] = await Promise.all([
      read(() => counts().then(byState)),
      read(workerCounts),
      read(queueCounts),
      read(deadLetterCounts),
      read(scheduleCounts),
      read(triggerCounts),
      read(webhookCounts),
      read(alertCounts),
    ])
    return { jobs, workers, queues, deadLetters, schedules, triggers, webhooks, alerts }
  }
  const checkRedis = sharedRead(async () => {
    if (relay === undefined) return {}
    const found = await relay.look()
    return { redis: found === 'away' || found === 'full' ? found : 'ok' } as const
  })

  app.get(
    '/healthz',
    {
      config: { ability: 'public' },
      schema: { tags, summary: 'Check whether the process is up', response: { 200: health } },
    },
    () => ({ status: 'ok' as const }),
  )

  app.get(
    '/readyz',
    {
      config: { ability: 'public' },
      schema: {
        tags,
        summary: 'Check whether the node can take requests',
        description:
          'The node is ready if the store answers, no disk is full, and the server is not stopping. It is degraded while Redis is down or full: ' +
          'everything still works through the store, a little later.',
        response: { 200: readiness, 503: readiness },
      },
    },
    async (_request, reply) => {
      const [atStore, atRedis] = await Promise.all([checkStore(), checkRedis()])
      const full = fullDisks.counts
      const checks = {
        store: atStore === 'ok' && full.store === 1 ? 'full' : atStore,
        ...(full.artifacts === 1 ? { artifacts: 'full' as const } : {}),
        ...atRedis,
        server: draining.aborted ? 'stopping' : 'ok',
      } as const
      if (checks.store !== 'ok' || full.artifacts === 1 || checks.server !== 'ok') {
        return reply.code(503).send({ status: 'not ready', checks })
      }
      return { status: (checks.redis ?? 'ok') === 'ok' ? 'ready' : 'degraded', checks } as const
    },
  )

  app.get(
    '/metrics',
    {
      config: { ability: 'readAll', evenWithoutStore: true },
      schema: {
        tags,
        summary: 'Metrics for Prometheus',
        response: {
          ...answers({}),
          200: { description: 'Prometheus text format', content: { 'text/plain': { schema: z.string() } } },
        },
      },
    },
    async (_request, reply) => {
      // The other numbers matter most when the store is down.
      const storeUp = (await checkStore()) === 'ok'
      const used = (await disks?.().catch(() => null)) ?? []
      const machine = { disks: used, certificateEndsAtMs, full: fullDisks.counts }
      const counts = await readCounts(storeUp)
      const page = await metrics.render({ storeUp, ...counts, ...machine, subscribers: feeds.counts })
      return reply.header('content-type', metrics.contentType).send(page)
    },
  )

  app.get(
    '/v1/stats',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Count jobs by state',
        response: answers({ 200: ['Jobs by state', stats] }),
      },
    },
    async () => byState(await counts()),
  )

  app.get(
    '/v1/stats/series',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Read series of statistics',
        description:
          'The nodes count what they commit, by the minute and the queue. The leader samples the gauges once a minute. All nodes give the same answer. ' +
          'A node that is killed loses the counts of its last second.',
        querystring: seriesQuery,
        response: answers({ 200: ['The series', series] }),
      },
    },
    async ({ query: { range, queue = null } }) => {
      const [read, queues] = await Promise.all([services.series.read(range, queue), seriesQueues[range]()])
      return { ...read, queues }
    },
  )

  app.get(
    '/v1/stats/rates',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Read how fast each queue moves',
        description: 'Over the last four minutes and the current one. A queue in which nothing moved is left out.',
        response: answers({ 200: ['The rates', z.object({ data: z.array(queueRate) })] }),
      },
    },
    async () => ({ data: await rates() }),
  )
}

function byState(counts: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(JOB_STATES.map((state) => [state, counts[state] ?? 0]))
}
