import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { Meter } from '../../services/system/meter.ts'
import type { RunSeries } from './run-series.ts'

export const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
/** From a minute to a month. */
const PARKED_SECONDS = [60, 600, 3600, 6 * 3600, 86_400, 3 * 86_400, 7 * 86_400, 30 * 86_400]
/** From 10 ms to a day, because a tick may have waited for a slot or for a leader. */
const TICK_SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 3600, 86_400]
const ITEMS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]

/** Counts for the services, as metrics of Prometheus. */
export function createMeter(registers: Registry[], runs: RunSeries): Meter {
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
  const deliveries = counter(
    'ichido_webhook_tries_total',
    'Messages that this node sent to webhooks: delivered, failed, or refused for good (gone)',
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
    // Ticks and triggers have counters of their own.
    made() {},
    leasedAtSubmit: (jobs) => atSubmit.inc(jobs),
    reservation(outcome) {
      reservations.inc({ outcome })
      if (outcome === 'refused') refusals.inc({ code: 'QUOTA_EXCEEDED' })
    },
    started: runs.started,
    ended(state, retries, queue, kind) {
      runs.ended(state, retries, queue, kind)
      if (retries > 0) retriesEnded.inc({ state })
    },
    reported: runs.reported,
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
    delivered: (outcome) => deliveries.inc({ outcome }),
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
