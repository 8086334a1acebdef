import { ECO2_STAGES, OPEN_STAGES, SEQ_MAX, type Stages, stageRange } from '@ichido/sdk/protocol'
import { type Check, isFlag, isListOf, isNumber, isObjectOf, isText, orMissing } from '../json/stored-json.ts'

/** A stage of a job's events and the numbers that belong to it. */
export interface DeclaredStage {
  name: string
  from: number
  to: number
  /** Its last event is the job's last. */
  final?: boolean | undefined
}

const isDeclared = isListOf(
  isObjectOf<DeclaredStage>({ name: isText, from: isNumber, to: isNumber, final: orMissing(isFlag) }),
)
export const isStages: Check<DeclaredStage[] | 'eco2'> = (value) => value === 'eco2' || isDeclared(value)

/** Room for each attempt when seq counts per attempt, so that a second attempt's events are new ones. */
export const SEQ_PER_ATTEMPT = SEQ_MAX + 1

/** `job`: an event is the same one in every attempt. */
export const SEQ_SCOPES = ['job', 'attempt'] as const
export type SeqScope = (typeof SEQ_SCOPES)[number]

/** The part of a job's policy that is about its events. What is not set takes the default. */
export interface EventPolicy {
  /** Default: the kind. */
  domain?: string
  /** Default: one open stage. */
  stages?: readonly DeclaredStage[] | 'eco2'
  seq_scope?: SeqScope
}

export interface EventRules {
  domain: string
  stages: Stages
  seqScope: SeqScope
}

export function eventRules(kind: string, { domain, stages, seq_scope }: EventPolicy): EventRules {
  return {
    domain: domain ?? kind,
    stages: stagesOf(stages) ?? OPEN_STAGES,
    seqScope: seq_scope ?? defaultSeqScope(stages),
  }
}

/** Null: only the open stage. */
export function stagesOf(stages: EventPolicy['stages']): Stages | null {
  if (stages === undefined) return null
  return stages === 'eco2' ? ECO2_STAGES : rangesOf(stages)
}

/** S4 counts seq once for the job. */
export function defaultSeqScope(stages: EventPolicy['stages'] | null): SeqScope {
  return stages === 'eco2' ? 'job' : 'attempt'
}

function rangesOf(stages: readonly DeclaredStage[]): Stages {
  return Object.fromEntries(stages.map(({ name, from, to }) => [name, { from, to }]))
}

/** What is wrong with a worker's seq; it goes on after the name of the field. */
export function seqProblem({ stages }: EventRules, stage: string, seq: number): string | null {
  const { from, to } = stageRange(stages, stage)
  if (seq >= from && seq <= to) return null
  const declared = Object.hasOwn(stages, stage)
  return `must be ${from} to ${to}: ${declared ? `that is the stage ${stage}` : `this job has no stage ${stage}`}`
}

export function storedSeq(scope: SeqScope, attempt: number, seq: number): number {
  return scope === 'job' ? seq : (attempt - 1) * SEQ_PER_ATTEMPT + seq
}
