/** What services count, whoever listens: the metrics page, a test, or nobody. */
export interface Meter {
  submitted(outcome: 'created' | 'replayed' | 'refused', keyed: boolean, code: string | null): void
  reservation(outcome: 'reserved' | 'consumed' | 'released' | 'refused'): void
  ended(state: string): void
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
  deadLetterMade() {},
  deadLetterResolved() {},
  leadership() {},
  looped() {},
  batch() {},
}
