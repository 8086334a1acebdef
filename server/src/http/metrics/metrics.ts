import type { QueueShape } from '@ichido/sdk/protocol'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from '@prometheus-io/client'
import type { FullPlace } from '../../core/node/store-full.ts'
import { COUNTED_EACH_MAX, type DeadLetterCounts } from '../../services/dead-letters/dead-letters.ts'
import type { DiskUse } from '../../services/deps.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { TriggerCounts } from '../../services/triggers/triggers.ts'

export interface Metrics {
  /** For the services, which count without knowing of Prometheus. */
  meter: Meter
  /** Says what is running. */
  built(version: string): void
  connections: {
    opened(): void
    closed(): void
    /** Closed at once: the node has as many as it may, or the address has. */
    refused(limit: 'node' | 'address'): void
  }
  /** One answered request; `route` is the template, never the path: paths hold ids and keys. */
  answered(request: AnsweredRequest): void
  contentType: string
  render(counts: Counts): Promise<string>
}

export interface AnsweredRequest {
  method: string
  route: string
  status: number
  elapsedMs: number
  /** `Ichido-Attempt`: how often the client has made this call by now. */
  attempt: string | string[] | undefined
}

/** By state, as the store has them; null when it cannot say. */
export interface Counts {
  storeUp: boolean
  jobs: Readonly<Record<string, number>> | null
  workers: Readonly<Record<string, number>> | null
  queues: readonly QueueShape[] | null
  deadLetters: DeadLetterCounts | null
  schedules: { overdue: number; waiting: number } | null
  triggers: TriggerCounts | null
  /** Those that are open, by rule. */
  alerts: Readonly<Record<string, number>> | null
  /** Of this node. */
  disks: readonly DiskUse[]
  certificateEndsAtMs: number | undefined
  /** 1 for each place that this node found full, else 0. */
  full: Readonly<Record<FullPlace, number>>
  /** Of the events of jobs, on this node. */
  subscribers: { current: number; behind: number }
}

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
/** A minute to a month. */
const PARKED_SECONDS = [60, 600, 3600, 6 * 3600, 86_400, 3 * 86_400, 7 * 86_400, 30 * 86_400]
/** A hundredth of a second to a day. */
const RUN_SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86_400]
/** A hundredth of a second to a day: a tick may have waited for a slot, or for somebody to lead. */
const TICK_SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 3600, 86_400]
const ITEMS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]

export function createMetrics(): Metrics {
  const registry = new Registry()
  const registers = [registry]
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
    meter: createMeter(registers),
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
      alertsByRule.reset()
      for (const [rule, count] of Object.entries(alerts ?? {})) alertsByRule.set({ rule }, count)
      for (const { folder, freeRatio } of machine.disks) diskFree.set({ folder }, freeRatio)
      const { certificateEndsAtMs } = machine
      setOrLeaveOut(certificateEnd, certificateEndsAtMs === undefined ? undefined : certificateEndsAtMs / 1000)
      for (const [pace, count] of Object.entries(subscribers)) subscribersByPace.set({ pace }, count)
      return registry.metrics()
    },
  }
}

function createMeter(registers: Registry[]): Meter {
  const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
    new Counter({ name, help, labelNames, registers })
  const submits = counter('ichido_submits_total', 'Submissions by outcome, with a key and without', [
    'outcome',
    'keyed',
  ])
  const atSubmit = counter('ichido_leases_at_submit_total', 'Jobs leased by the statement that stored them', [])
  const keys = counter('ichido_idempotency_keys_total', 'Submissions with a key: hit, miss or mismatch', ['result'])
  const refusals = counter('ichido_quota_refusals_total', 'Submissions that a quota or cost limit refused', ['code'])
  const reservations = counter('ichido_reservations_total', 'Reservations by what was done with them', ['outcome'])
  const ended = counter('ichido_runs_ended_total', 'Runs by the state they ended in', ['state'])
  const retriesEnded = counter(
    'ichido_retried_runs_ended_total',
    'Runs that the policy of their job made after a failure, by the state they ended in; the first run after a person or a ' +
      'redrive has tried it again is none',
    ['state'],
  )
  const retries = counter(
    'ichido_retries_total',
    'Retries of jobs, by cause: the policy of the job, a person, or a redrive',
    ['by'],
  )
  const fenced = counter('ichido_fenced_writes_total', 'Writes of workers that changed nothing, by reason', [
    'verb',
    'reason',
  ])
  const waits = new Histogram({
    name: 'ichido_run_wait_seconds',
    help: 'From when a run was due until it started',
    buckets: RUN_SECONDS,
    registers,
  })
  const took = new Histogram({
    name: 'ichido_run_seconds',
    help: 'From the start of a run to its end, by the state it ended in',
    labelNames: ['state'],
    buckets: RUN_SECONDS,
    registers,
  })
  const deadMade = counter('ichido_dead_letters_made_total', 'Jobs that used up their retries', [])
  const deadResolved = new Histogram({
    name: 'ichido_dead_letter_resolution_seconds',
    help: 'How long dead letters waited before a person handled them, by how',
    labelNames: ['how'],
    buckets: PARKED_SECONDS,
    registers,
  })
  const ticks = counter(
    'ichido_ticks_total',
    'Ticks of schedules and backfills, by what became of them; not those that a pause or a deletion skipped, and a skip ' +
      'of many as one',
    ['outcome'],
  )
  const lateness = new Histogram({
    name: 'ichido_tick_lateness_seconds',
    help: 'From when a tick was due until its job was made',
    buckets: TICK_SECONDS,
    registers,
  })
  const triggers = counter('ichido_triggers_total', 'Triggers that were sent: recorded, or duplicates', ['outcome'])
  const triggerOutcomes = counter(
    'ichido_trigger_outcomes_total',
    'Outcomes of triggers for definitions; a waiting trigger is counted again when it is settled',
    ['outcome'],
  )
  const isLeader = new Gauge({
    name: 'ichido_is_leader',
    help: '1 on the node that leads, while its term is certain',
    registers,
  })
  const epochs = new Gauge({ name: 'ichido_leader_epoch', help: "The leader's term, as this node knows it", registers })
  const loops = new Gauge({
    name: 'ichido_loop_last_run_timestamp_seconds',
    help: 'When each loop last finished a tick on this node',
    labelNames: ['loop'],
    registers,
  })
  const removed = counter('ichido_retention_removed_rows_total', 'Expired rows that were removed, by table', ['table'])
  const behind = new Gauge({
    name: 'ichido_retention_lag_seconds',
    help: 'How long retention has been behind with removing; 0 when nothing is left',
    registers,
  })
  const lost = counter('ichido_evidence_lost_total', 'Jobs whose counts are incomplete', [])
  const relayed = counter('ichido_events_relayed_total', 'Events for Redis, by what this node did with them', [
    'outcome',
  ])
  const redisSkipped = counter(
    'ichido_redis_keys_skipped_total',
    'Keys in Redis that were left unchanged because they hold data that is not Ichido’s',
    [],
  )
  const redisTroubles = new Gauge({
    name: 'ichido_redis_trouble',
    help: '1 while this node finds Redis full, or set to drop keys when it is full (evicts); else 0',
    labelNames: ['trouble'],
    registers,
  })
  const ingested = counter(
    'ichido_foreign_events_total',
    'Events that other programs put into streams of Redis: stored, repeated, of an unknown job, or refused',
    ['outcome'],
  )
  const routed = counter('ichido_events_routed_total', 'Events that this node took from streams of Redis', ['outcome'])
  const streamsBroken = counter(
    'ichido_event_streams_broken_total',
    'Streams of events that continued with a reset, or were dropped because the reader took nothing for a minute',
    ['how'],
  )
  const logsArchived = counter('ichido_logs_archived_total', 'Logs of runs that were moved to files', [])
  const logBytes = counter(
    'ichido_log_archived_bytes_total',
    'Bytes of the logs that were moved to files, and of their compressed files',
    ['of'],
  )
  const maxima = counter(
    'ichido_maximum_refusals_total',
    'Requests refused because a maximum was reached, by the setting that names it',
    ['setting'],
  )
  const batchItems = new Histogram({
    name: 'ichido_batch_items',
    help: 'How many commands shared a transaction',
    labelNames: ['batch'],
    buckets: ITEMS,
    registers,
  })
  const batchSeconds = new Histogram({
    name: 'ichido_store_batch_seconds',
    help: 'How long the store took for a batch, commit included',
    labelNames: ['batch'],
    buckets: SECONDS,
    registers,
  })
  return {
    submitted(outcome, keyed, code) {
      submits.inc({ outcome, keyed: String(keyed) })
      if (keyed && outcome === 'created') keys.inc({ result: 'miss' })
      else if (keyed && outcome === 'replayed') keys.inc({ result: 'hit' })
      else if (code === 'IDEMPOTENCY_KEY_REUSED') keys.inc({ result: 'mismatch' })
      else if (code === 'QUOTA_EXCEEDED' || code === 'COST_LIMIT_EXCEEDED') refusals.inc({ code })
    },
    leasedAtSubmit: (jobs) => atSubmit.inc(jobs),
    reservation(outcome) {
      reservations.inc({ outcome })
      if (outcome === 'refused') refusals.inc({ code: 'QUOTA_EXCEEDED' })
    },
    started: (waitedMs) => waits.observe(waitedMs / 1000),
    ended(state, retries = 0) {
      ended.inc({ state })
      if (retries > 0) retriesEnded.inc({ state })
    },
    reported: (state, tookMs) => took.observe({ state }, tookMs / 1000),
    retried: (by) => retries.inc({ by }),
    fenced: (verb, reason) => fenced.inc({ verb, reason }),
    deadLetterMade: () => deadMade.inc(),
    deadLetterResolved: (how, parkedMs) => deadResolved.observe({ how }, parkedMs / 1000),
    ticked(outcome, lateMs) {
      ticks.inc({ outcome })
      if (outcome === 'job' && lateMs !== null) lateness.observe(lateMs / 1000)
    },
    triggered: (outcome) => triggers.inc({ outcome }),
    triggerDecided: (outcome) => triggerOutcomes.inc({ outcome }),
    leadership(leads, epoch) {
      isLeader.set(leads ? 1 : 0)
      epochs.set(epoch)
    },
    logArchived(log, file) {
      logsArchived.inc()
      logBytes.inc({ of: 'log' }, log)
      logBytes.inc({ of: 'file' }, file)
    },
    looped: (loop, atMs) => loops.set({ loop }, atMs / 1000),
    removed(table, count) {
      if (count > 0) removed.inc({ table }, count)
    },
    retentionBehind: (ms) => behind.set(ms / 1000),
    relayed: (outcome, count) => relayed.inc({ outcome }, count),
    redisKeysSkipped: (count) => redisSkipped.inc(count),
    redisTrouble: (trouble, is) => redisTroubles.set({ trouble }, is ? 1 : 0),
    routed: (outcome, count) => routed.inc({ outcome }, count),
    ingested: (outcome, count) => ingested.inc({ outcome }, count),
    streamBroken: (how) => streamsBroken.inc({ how }),
    evidenceLost: (jobs) => lost.inc(jobs),
    maximumReached: (setting) => maxima.inc({ setting }),
    batch({ name, items, elapsedMs }) {
      batchItems.observe({ batch: name }, items)
      batchSeconds.observe({ batch: name }, elapsedMs / 1000)
    },
  }
}

/** Of the queues with the most work: each has a few lines of its own. */
const QUEUES_MAX = 200

export function createQueueGauges(registers: Registry[]): (queues: readonly QueueShape[]) => void {
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

export function createDeadLetterGauges(registers: Registry[]): (counts: DeadLetterCounts | null) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, labelNames: ['queue'], registers })
  const letters = gauge(
    'ichido_dead_letters',
    `Dead letters by queue, counted up to ${COUNTED_EACH_MAX} each; queues without any are left out`,
  )
  const oldest = gauge('ichido_dead_letter_oldest_seconds', 'How long the oldest dead letter has waited')
  const redrives = new Gauge({ name: 'ichido_redrives_running', help: 'Redrives that are not done yet', registers })
  return (counts) => {
    for (const each of [letters, oldest]) each.reset()
    setOrLeaveOut(redrives, counts?.redrivesRunning)
    for (const { queue, count, oldestMs } of counts?.queues ?? []) {
      letters.set({ queue }, count)
      oldest.set({ queue }, Math.max(0, oldestMs / 1000))
    }
  }
}

export function createTriggerGauges(registers: Registry[]): (counts: TriggerCounts | null) => void {
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

/** A gauge without labels would be 0 of itself, and say that all is well when nobody knows. */
export function setOrLeaveOut(gauge: Gauge, value: number | undefined): void {
  if (value === undefined) gauge.remove()
  else gauge.set(value)
}
