import type { TriggerOutcome } from '@ichido/sdk/protocol'
import type { SettingName } from '../../core/limits/settings.ts'

/** The counters of the services, for the metrics or a test. */
export interface Meter {
  submitted(outcome: 'created' | 'replayed' | 'refused', keyed: boolean, code: string | null, queue: string): void
  /** A definition has made a job, for a tick or a trigger. */
  made(queue: string): void
  /** Jobs that were leased by the statement that stored them. */
  leasedAtSubmit(jobs: number): void
  reservation(outcome: 'reserved' | 'consumed' | 'released' | 'refused'): void
  /** A worker has started a run this long after it was due. */
  started(waitedMs: number, queue: string, kind: string): void
  /**
   * A run has ended. `retries`: how often its job had failed since it was submitted, retried by a person or redriven.
   */
  ended(state: string, retries: number, queue: string, kind: string): void
  /** A worker has reported the end of a run, how long it took, and its cost if it succeeded. */
  reported(state: string, tookMs: number, queue: string, kind: string, costMicros: number): void
  /** A job got its next run: by its policy after a failure, by a person, or by a redrive. */
  retried(by: 'policy' | 'person' | 'redrive', queue: string): void
  /** A write of a worker was refused, because it was late or had another lease. */
  fenced(verb: string, reason: string): void
  deadLetterMade(queue: string): void
  /** A dead letter was resolved, this long after it became one. */
  deadLetterResolved(how: 'retried' | 'redriven' | 'replaced', parkedMs: number): void
  /** The outcome of a tick, and how late it was; null for a tick of the past. */
  ticked(outcome: 'job' | 'skipped' | 'waiting_quota' | 'waiting_overlap', lateMs: number | null): void
  /** A trigger was received. */
  triggered(outcome: 'recorded' | 'duplicate'): void
  /** The outcome of a trigger for a definition. */
  triggerDecided(outcome: TriggerOutcome): void
  /** A message to a webhook was answered, or not. */
  delivered(outcome: 'delivered' | 'failed' | 'gone'): void
  /** Whether this node leads and trusts its term, and the epoch. */
  leadership(leads: boolean, epoch: number): void
  /** The log of a run was moved to a file. */
  logArchived(logBytes: number, fileBytes: number): void
  /** A loop has finished a tick. */
  looped(name: string, atMs: number): void
  /** Expired rows that were removed, by table. */
  removed(table: string, count: number): void
  /** How long retention has been behind with removing; 0 when nothing is left. */
  retentionBehind(ms: number): void
  /**
   * Events that this node added to Redis, found there, left to the sweep of the leader, swept as the leader, or skipped
   * because their stream belongs to another program.
   */
  relayed(outcome: 'added' | 'repeated' | 'left' | 'swept' | 'skipped', count: number): void
  /** Keys in Redis with foreign data, counted each time that this node meets one. */
  redisKeysSkipped(count: number): void
  /** Whether Redis is full, or is set to drop keys when it is full. */
  redisTrouble(trouble: 'full' | 'evicts', is: boolean): void
  /** Events that this node took from streams of Redis, new or already taken by another node. */
  routed(outcome: 'new' | 'repeated', count: number): void
  /** Events that other programs put into streams of Redis: stored, already stored, of an unknown job, or refused. */
  ingested(outcome: 'stored' | 'repeated' | 'unknown' | 'refused', count: number): void
  /** A stream continued with a reset, or was dropped because the reader took nothing for too long. */
  streamBroken(how: 'reset' | 'dropped'): void
  /** Jobs whose counts are incomplete, because too many counts waited to be written. */
  evidenceLost(jobs: number): void
  /** A request was refused, because it would exceed the maximum of this setting. */
  maximumReached(setting: SettingName): void
  batch(batch: { name: string; items: number; elapsedMs: number }): void
}

export const silentMeter: Meter = {
  submitted() {},
  made() {},
  leasedAtSubmit() {},
  reservation() {},
  started() {},
  ended() {},
  reported() {},
  retried() {},
  fenced() {},
  deadLetterMade() {},
  deadLetterResolved() {},
  ticked() {},
  triggered() {},
  triggerDecided() {},
  delivered() {},
  leadership() {},
  logArchived() {},
  looped() {},
  removed() {},
  retentionBehind() {},
  relayed() {},
  redisKeysSkipped() {},
  redisTrouble() {},
  routed() {},
  ingested() {},
  streamBroken() {},
  evidenceLost() {},
  maximumReached() {},
  batch() {},
}
