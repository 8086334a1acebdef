import type { QueueShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from '@prometheus-io/client'
import type { FullPlace } from '../../core/node/store-errors.ts'
import { COUNTED_EACH_MAX, type DeadLetterCounts } from '../../services/dead-letters/dead-letters.ts'
import type { DiskUse } from '../../services/deps.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { TriggerCounts } from '../../services/triggers/triggers.ts'
import { createMeter, SECONDS } from './meter.ts'
import { createRunSeries } from './run-series.ts'

export interface Metrics {
  /** Services count with it, without knowing Prometheus. */
  meter: Meter
  /** Sets the version. */
  built(version: string): void
  connections: {
    opened(): void
    closed(): void
    /** The connection was closed at once, because the node or the address has reached its maximum. */
    refused(limit: 'node' | 'address'): void
  }
  /** Counts an answered request. `route` is the template, because paths contain ids and keys. */
  answered(request: AnsweredRequest): void
  contentType: string
  render(counts: Counts): Promise<string>
}

interface AnsweredRequest {
  method: string
  route: string
  status: number
  elapsedMs: number
  /** `Ichido-Attempt`: the number of this try of the client. */
  attempt: string | string[] | undefined
}

/** The numbers of the store; null if it did not answer. */
export interface Counts {
  storeUp: boolean
  jobs: Readonly<Record<string, number>> | null
  workers: Readonly<Record<string, number>> | null
  queues: readonly QueueShape[] | null
  deadLetters: DeadLetterCounts | null
  schedules: { overdue: number; waiting: number } | null
  triggers: TriggerCounts | null
  /** Deliveries of webhooks, by state. */
  webhooks: Readonly<Record<'pending' | 'dead', number>> | null
  /** Open alerts, by rule. */
  alerts: Readonly<Record<string, number>> | null
  /** The disks of this node. */
  disks: readonly DiskUse[]
  certificateEndsAtMs: number | undefined
  /** 1 for each full disk of this node, else 0. */
  full: Readonly<Record<FullPlace, number>>
  /** The open event streams of this node. */
  subscribers: { current: number; behind: number }
}

/** Only the queues with the most work have their own series. */
const QUEUES_MAX = 200

export function createMetrics(world: Pick<World, 'monotonic'>): Metrics {
  const registry = new Registry()
  const registers = [registry]
  const runs = createRunSeries(world)
  collectDefaultMetrics({ register: registry })
  const build = new Gauge({
    name: 'ichido_build_info',
    help: 'Always 1; the labels say what is running',
    labelNames: ['version', 'node'],
    registers,
  })
  const up = new Gauge({ name: 'ichido_store_up', help: '1 while the store answers this node, else 0', registers })
  const fullByPlace = new Gauge({
    name: 'ichido_store_full',
    help: '1 while this node finds a disk of the store or of the artifacts full, else 0',
    labelNames: ['place'],
    registers,
  })
  const jobsByState = new Gauge({
    name: 'ichido_jobs',
    help: 'Jobs by the state of their latest run',
    labelNames: ['state'],
    registers,
  })
  const workersByState = new Gauge({
    name: 'ichido_workers',
    help: 'Workers by state: online, detached, unseen or revoked',
    labelNames: ['state'],
    registers,
  })
  const deliveriesByState = new Gauge({
    name: 'ichido_webhook_deliveries',
    help: 'Deliveries of webhooks that are pending or dead, counted up to 1000 of each webhook',
    labelNames: ['state'],
    registers: [registry],
  })
  const alertsByRule = new Gauge({
    name: 'ichido_alerts_open',
    help: 'Alerts that are open, by rule',
    labelNames: ['rule'],
    registers,
  })
  const overdue = new Gauge({
    name: 'ichido_schedules_overdue',
    help: 'Schedules with a tick that was not made within 30 s, without paused ones',
    registers,
  })
  const waitingTicks = new Gauge({
    name: 'ichido_ticks_waiting',
    help: 'Ticks that wait for a free slot or for the previous job',
    registers,
  })
  const subscribersByPace = new Gauge({
    name: 'ichido_event_subscribers',
    help: 'Open streams of events on this node: current, or behind',
    labelNames: ['pace'],
    registers,
  })
  const diskFree = new Gauge({
    name: 'ichido_disk_free_ratio',
    help: 'The free share, from 0 to 1, of the disk of each folder that this node writes to',
    labelNames: ['folder'],
    registers,
  })
  const certificateEnd = new Gauge({
    name: 'ichido_certificate_end_timestamp_seconds',
    help: 'When the certificate of this node expires',
    registers,
  })
  const showQueues = createQueueGauges(registers)
  const showDeadLetters = createDeadLetterGauges(registers)
  const showTriggers = createTriggerGauges(registers)
  const requests = new Histogram({
    name: 'ichido_http_request_seconds',
    help: 'Requests by route and status, and how long their answers took',
    labelNames: ['method', 'route', 'status'],
    buckets: SECONDS,
    registers,
  })
  const clientRetries = new Counter({
    name: 'ichido_client_retries_total',
    help: 'Retried calls (Ichido-Attempt), by the outcome of this try',
    labelNames: ['outcome'],
    registers,
  })
  const connectionsOpen = new Gauge({ name: 'ichido_http_connections', help: 'Open connections of clients', registers })
  const connectionsRefused = new Counter({
    name: 'ichido_http_connections_refused_total',
    help: 'Connections that were closed at once, by the limit that was reached: of the node, or of the address',
    labelNames: ['limit'],
    registers,
  })
  return {
    meter: createMeter(registers, runs),
    connections: {
      opened: () => connectionsOpen.inc(),
      closed: () => connectionsOpen.dec(),
      refused: (limit) => connectionsRefused.inc({ limit }),
    },
    built: (version) => build.set({ version, node: process.version }, 1),
    answered({ method, route, status, elapsedMs, attempt }) {
      requests.observe({ method, route, status }, elapsedMs / 1000)
      if (Number(attempt) > 1) clientRetries.inc({ outcome: status < 400 ? 'succeeded' : 'failed' })
    },
    contentType: registry.contentType,
    async render({
      storeUp,
      jobs,
      workers,
      queues,
      deadLetters,
      schedules,
      triggers,
      webhooks,
      alerts,
      full,
      subscribers,
      ...machine
    }) {
      up.set(storeUp ? 1 : 0)
      for (const [place, count] of Object.entries(full)) fullByPlace.set({ place }, count)
      showQueues(queues ?? [])
      showDeadLetters(deadLetters)
      showTriggers(triggers)
      setOrLeaveOut(overdue, schedules?.overdue)
      setOrLeaveOut(waitingTicks, schedules?.waiting)
      jobsByState.reset()
      for (const [state, count] of Object.entries(jobs ?? {})) jobsByState.set({ state }, count)
      workersByState.reset()
      for (const [state, count] of Object.entries(workers ?? {})) workersByState.set({ state }, count)
      deliveriesByState.reset()
      for (const [state, count] of Object.entries(webhooks ?? {})) deliveriesByState.set({ state }, count)
      alertsByRule.reset()
      for (const [rule, count] of Object.entries(alerts ?? {})) alertsByRule.set({ rule }, count)
      for (const { folder, freeRatio } of machine.disks) diskFree.set({ folder }, freeRatio)
      const { certificateEndsAtMs } = machine
      setOrLeaveOut(certificateEnd, certificateEndsAtMs === undefined ? undefined : certificateEndsAtMs / 1000)
      for (const [pace, count] of Object.entries(subscribers)) subscribersByPace.set({ pace }, count)
      return (await registry.metrics()) + runs.render()
    },
  }
}

function createQueueGauges(registers: Registry[]): (queues: readonly QueueShape[]) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, labelNames: ['queue'], registers })
  const ready = gauge('ichido_queue_ready', 'Due runs that no worker holds, also while the queue is paused or full')
  const delayed = gauge('ichido_queue_delayed', 'Runs that are not due yet')
  const leases = gauge('ichido_queue_active_leases', 'Runs that workers hold')
  const oldest = gauge(
    'ichido_queue_oldest_ready_seconds',
    'How long the oldest ready run has been due, also while the queue is paused or full; 0 when none is ready',
  )
  const paused = gauge('ichido_queue_paused', '1 while the queue is paused, else 0')
  const limit = gauge('ichido_queue_limit', 'How many runs workers may hold at a time (max_concurrent), if it is set')
  return (queues) => {
    for (const each of [ready, delayed, leases, oldest, paused, limit]) each.reset()
    const busiest = queues.toSorted((a, b) => b.ready + b.running - (a.ready + a.running)).slice(0, QUEUES_MAX)
    for (const { name: queue, ...found } of busiest) {
      ready.set({ queue }, found.ready)
      delayed.set({ queue }, found.delayed)
      leases.set({ queue }, found.running)
      oldest.set({ queue }, found.oldest_ready_seconds ?? 0)
      paused.set({ queue }, found.paused ? 1 : 0)
      if (found.max_concurrent !== null) limit.set({ queue }, found.max_concurrent)
    }
  }
}

function createDeadLetterGauges(registers: Registry[]): (counts: DeadLetterCounts | null) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, labelNames: ['queue'], registers })
  const letters = gauge(
    'ichido_dead_letters',
    `Dead letters by queue, counted up to ${COUNTED_EACH_MAX} each; queues without any are left out`,
  )
  const oldest = gauge('ichido_dead_letter_oldest_seconds', 'How long the oldest dead letter has waited')
  const operations = new Gauge({
    name: 'ichido_operations_running',
    help: 'Operations that are not done yet: cancels, retries and redrives of many jobs',
    registers,
  })
  return (counts) => {
    for (const each of [letters, oldest]) each.reset()
    setOrLeaveOut(operations, counts?.operationsRunning)
    for (const { queue, count, oldestMs } of counts?.queues ?? []) {
      letters.set({ queue }, count)
      oldest.set({ queue }, Math.max(0, oldestMs / 1000))
    }
  }
}

function createTriggerGauges(registers: Registry[]): (counts: TriggerCounts | null) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, registers })
  const unprocessed = gauge('ichido_triggers_unprocessed', 'Triggers that the leader has not processed yet')
  const oldest = gauge(
    'ichido_trigger_oldest_unprocessed_seconds',
    'The age of the oldest trigger that was not processed; 0 without any',
  )
  const waiting = gauge(
    'ichido_triggers_waiting',
    'Triggers that wait for a free slot, the end of a pause or their turn',
  )
  return (counts) => {
    setOrLeaveOut(unprocessed, counts?.unprocessed)
    setOrLeaveOut(oldest, counts === null ? undefined : Math.max(0, counts.oldestMs ?? 0) / 1000)
    setOrLeaveOut(waiting, counts?.waiting)
  }
}

/** A gauge without labels would show 0, as if all were well, while the number is unknown. */
function setOrLeaveOut(gauge: Gauge, value: number | undefined): void {
  if (value === undefined) gauge.remove()
  else gauge.set(value)
}
