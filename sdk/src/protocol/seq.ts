/** A range of seq numbers; the seq of an event is its number inside its stage. */
export interface SeqRange {
  from: number
  to: number
}

/** A stage of a job's events and its range of numbers. */
export interface StageShape {
  name: string
  from: number
  to: number
  final?: boolean | undefined
}

/** The range of seq numbers of each stage. */
export type Stages = Readonly<Record<string, SeqRange>>

/** The stages of the preset `eco2`. */
export const ECO2_STAGES: Stages = {
  vision: { from: 10, to: 19 },
  rule: { from: 20, to: 29 },
  answer: { from: 30, to: 39 },
  reward: { from: 40, to: 49 },
  done: { from: 50, to: 59 },
}

/** The range of a stage that a job does not declare. */
export const UNDECLARED_STAGE: SeqRange = { from: 0, to: 9 }

/** The only stage of a job that declares none. */
export const PROGRESS_STAGE = 'progress'
/** The highest seq number. */
export const SEQ_MAX = 999_999
/** The stages of a job that declares none. */
export const OPEN_STAGES: Stages = { [PROGRESS_STAGE]: { from: 0, to: SEQ_MAX } }

/** The range of a stage; undeclared stages share one. */
export function stageRange(stages: Stages, stage: string): SeqRange {
  return Object.hasOwn(stages, stage) ? (stages[stage] ?? UNDECLARED_STAGE) : UNDECLARED_STAGE
}

/** The stage's first number plus the number inside the stage; null outside the stage's range. */
export function nextSeq(stages: Stages, stage: string, sub = 0): number | null {
  const range = stageRange(stages, stage)
  const seq = range.from + sub
  return Number.isInteger(sub) && sub >= 0 && seq <= range.to ? seq : null
}
