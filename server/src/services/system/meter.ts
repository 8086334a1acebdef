import type { TriggerOutcome } from '@ichido/sdk/protocol'
import type { SettingName } from '../../core/limits/settings.ts'

/** What services count, whoever listens: the metrics page, a test, or nobody. */
export interface Meter {
  submitted(outcome: 'created' | 'replayed' | 'refused', keyed: boolean, code: string | null): void
  /** Jobs that were leased by the statement that stored them. */
  leasedAtSubmit(jobs: number): void
  reservation(outcome: 'reserved' | 'consumed' | 'released' | 'refused'): void
  /** A worker has started a run, so long after it was due. */
  started(waitedMs: number): void
  /** A run has ended. Its job had failed so often since it was submitted, or since a person or a redrive tried it again. */
  ended(state: string, retries?: number): void
  /** A worker has reported the end of a run, and how long it took. */
  reported(state: string, tookMs: number): void
  /** A job was given its next run: by its policy after a failure, by a person, or by a redrive. */
  retried(by: 'policy' | 'person' | 'redrive'): void
  /** A worker's write came too late, or from who does not hold the lease. */
  fenced(verb: string, reason: string): void
  deadLetterMade(): void
  /** What became of a dead letter, and how long it was one. */
  deadLetterResolved(how: 'retried' | 'redriven' | 'replaced', parkedMs: number): void
  /** What became of a tick, and how long after it was due; null for one of the past. */
  ticked(outcome: 'job' | 'skipped' | 'waiting_quota' | 'waiting_overlap', lateMs: number | null): void
  /** What became of a trigger that was sent. */
  triggered(outcome: 'recorded' | 'duplicate'): void
  /** What a trigger made of a definition. */
  triggerDecided(outcome: TriggerOutcome): void
  /** What this node knows of leadership: whether it leads and trusts its term, and the epoch. */
  leadership(leads: boolean, epoch: number): void
  /** The log of a run has left the store: its bytes, and those of its file. */
  logArchived(logBytes: number, fileBytes: number): void
  /** A loop has come to the end of a tick. */
  looped(name: string, atMs: number): void
  /** Rows that were past their retention, by table. */
  removed(table: string, count: number): void
  /** How long retention has been behind with removing; 0 when nothing is left. */
  retentionBehind(ms: number): void
  /**
   * Events that this node added to Redis, found there, left to the leader's sweep, swept as the leader, or skipped because
   * their stream is another program's.
   */
  relayed(outcome: 'added' | 'repeated' | 'left' | 'swept' | 'skipped', count: number): void
  /** Keys in Redis that hold something that is not Ichido's, each time that this node meets one. */
  redisKeysSkipped(count: number): void
  /** Whether Redis is full, or drops keys when it is. */
  redisTrouble(trouble: 'full' | 'evicts', is: boolean): void
  /** Events that this node took from Redis's streams to the gateways, or that another had taken before. */
  routed(outcome: 'new' | 'repeated', count: number): void
  /**
   * Events that other programs put into Redis's streams, each time that a router meets one: stored now, stored before, of no job that there is, or not fit to be
   * stored.
   */
  ingested(outcome: 'stored' | 'repeated' | 'unknown' | 'refused', count: number): void
  /** Of what a subscriber has not seen something is not kept any more; or it took nothing for so long that it was cut off. */
  streamBroken(how: 'reset' | 'dropped'): void
  /** Of how many jobs something was not counted, for too many were waiting to be written. */
  evidenceLost(jobs: number): void
  /** A request was refused, for what it asks for would pass the maximum that this setting names. */
  maximumReached(setting: SettingName): void
  batch(batch: { name: string; items: number; elapsedMs: number }): void
}

export const silentMeter: Meter = {
  submitted() {},
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
