import { ECO2_STAGES, OPEN_STAGES, SEQ_MAX, type Stages, stageRange } from '@ichido/sdk/protocol'
import { type Check, isFlag, isListOf, isNumber, isObjectOf, isText, orMissing } from '../json/stored-json.ts'

/** The identity of an event. */
export interface EventName {
  jobId: string
  stage: string
  /** It includes the attempt if each attempt counts anew. */
  seq: number
}

/** An event as it is stored. */
export interface StoredEvent extends EventName {
  domain: string
  /** The cursor: gapless within the job. */
  n: number
  /** JSON text. */
  data: string
  createdAtMs: number
}

/** An event that another program put into a stream. It has no cursor until it is stored. */
export interface ForeignEvent extends EventName {
  /** JSON text. */
  data: string
}

export interface IngestedEvent {
  event: StoredEvent
  /** True if it is the last event of its job so far. */
  last: boolean
}

/** A stage of a job's events, and the range of its numbers. */
export interface DeclaredStage {
  name: string
  from: number
  to: number
  /** The last event of this stage is the last of the job. */
  final?: boolean | undefined
}

const isDeclared = isListOf(
  isObjectOf<DeclaredStage>({ name: isText, from: isNumber, to: isNumber, final: orMissing(isFlag) }),
)
export const isStages: Check<DeclaredStage[] | 'eco2'> = (value) => value === 'eco2' || isDeclared(value)

/** The size of an attempt's number range if seq counts per attempt, so that events of a second attempt are new. */
export const SEQ_PER_ATTEMPT = SEQ_MAX + 1

/** `job`: an event of the same seq is the same in every attempt. */
export const SEQ_SCOPES = ['job', 'attempt'] as const
export type SeqScope = (typeof SEQ_SCOPES)[number]

/** The part of a job's policy for its events. Fields that are not set have their defaults. */
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

/** Null if there is only the open stage. */
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

/** Says what is wrong with a worker's seq, as the end of a sentence that begins with the field's name. */
export function seqProblem({ stages }: EventRules, stage: string, seq: number): string | null {
  const { from, to } = stageRange(stages, stage)
  if (seq >= from && seq <= to) return null
  const declared = Object.hasOwn(stages, stage)
  return `must be ${from} to ${to}: ${declared ? `that is the stage ${stage}` : `this job has no stage ${stage}`}`
}

export function storedSeq(scope: SeqScope, attempt: number, seq: number): number {
  return scope === 'job' ? seq : (attempt - 1) * SEQ_PER_ATTEMPT + seq
}

/** The number of streams for the events of a domain, as in S4. */
export const DEFAULT_SHARDS = 4
/** A router has a connection for each shard. */
export const SHARDS_MAX = 64
