/** The seq of an event: its number inside its stage. S4's ranges are the preset `eco2`. */
export interface SeqRange {
  from: number
  to: number
}

export type Stages = Readonly<Record<string, SeqRange>>

export const ECO2_STAGES: Stages = {
  vision: { from: 10, to: 19 },
  rule: { from: 20, to: 29 },
  answer: { from: 30, to: 39 },
  reward: { from: 40, to: 49 },
  done: { from: 50, to: 59 },
}

/** A stage that the definition does not declare may use these only. */
export const UNDECLARED_STAGE: SeqRange = { from: 0, to: 9 }

/** Room for each attempt when seq counts per attempt, so that a second attempt's events are new ones. */
export const SEQ_PER_ATTEMPT = 1_000_000

export function stageRange(stages: Stages, stage: string): SeqRange {
  return Object.hasOwn(stages, stage) ? (stages[stage] ?? UNDECLARED_STAGE) : UNDECLARED_STAGE
}

/** S4's `get_next_seq`: the stage's base plus the number inside the stage; null outside the stage's range. */
export function nextSeq(stages: Stages, stage: string, sub = 0): number | null {
  const range = stageRange(stages, stage)
  const seq = range.from + sub
  return Number.isInteger(sub) && sub >= 0 && seq <= range.to ? seq : null
}

export type SeqScope = 'job' | 'attempt'

export function storedSeq(scope: SeqScope, attempt: number, seq: number): number {
  return scope === 'job' ? seq : (attempt - 1) * SEQ_PER_ATTEMPT + seq
}
