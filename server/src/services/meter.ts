/** What services count, whoever listens: the metrics page, a test, or nobody. */
export interface Meter {
  submitted(outcome: 'created' | 'replayed' | 'refused', keyed: boolean, code: string | null): void
  reservation(outcome: 'reserved' | 'consumed' | 'released' | 'refused'): void
  ended(state: string): void
  /** A worker has reported the end of a run that had failed so often before: how long it waited, and then took. */
  reported(state: string, retries: number, times: { waitedMs: number; tookMs: number }): void
  /** A worker's write came too late, or from who does not hold the lease. */
  fenced(verb: string, reason: string): void
  deadLetterMade(): void
  /** What became of a dead letter, and how long it was one. */
  deadLetterResolved(how: 'retried' | 'redriven' | 'replaced', parkedMs: number): void
  /** What this node knows of leadership: whether it leads, and the epoch. */
  leadership(leads: boolean, epoch: number): void
  /** A loop has come to the end of a tick. */
  looped(name: string, atMs: number): void
  batch(batch: { name: string; items: number; elapsedMs: number }): void
}

export const silentMeter: Meter = {
  submitted() {},
  reservation() {},
  ended() {},
  reported() {},
  fenced() {},
  deadLetterMade() {},
  deadLetterResolved() {},
  leadership() {},
  looped() {},
  batch() {},
}
