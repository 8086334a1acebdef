import {
  DEFAULT_KEY_TTL_HOURS,
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  DEFAULT_UPLOAD_TTL_SECONDS,
  IchidoError,
} from '@ichido/sdk/protocol'
import type { SubmitInput } from '../../contract/submit.ts'
import { invalid } from '../../core/json/problem.ts'
import { requestHash } from '../../core/keys/key.ts'
import { toMicros } from '../../core/limits/quota.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { fromBackoffShape, type JobPolicy } from '../../core/run/job.ts'
import { unresolvedUrlProblem } from '../../core/webhooks/webhook.ts'
import { type Command, rehearse, type Store } from '../../store/port.ts'
import type {
  Accepted,
  RenderAccepted,
  SubmitItem,
  SubmitOutcome,
  SubmitRefusal,
  UntaggedItem,
} from '../../store/submission/submission.ts'
import { submitJobs, submitUntagged } from '../../store/submission/submit-jobs.ts'
import { notFound } from '../answers.ts'
import { Batcher } from '../batching/batcher.ts'
import { blobsOf, type Deps } from '../deps.ts'
import type { FairTags } from '../leasing/fair-tags.ts'
import { priorityProblem, type UserNames } from '../limits/maximum.ts'
import type { SubmitToWaitingPolls } from './submit-and-lease.ts'

export type { SubmitOutcome, SubmitRefusal } from '../../store/submission/submission.ts'

/** The differences between the native API and the compat adapters. */
export interface SubmitOptions {
  key: string | null
  /** The payload as JSON, if the caller has it. */
  payloadJson?: string
  /** Each operation has its own keys. */
  operation?: string
  /** The request that the key stands for; default: the whole job. */
  hashOver?: unknown
  /** Stores a consumed reservation beside the job, like S0. */
  consumedReservation?: boolean
  /** Used for fields that the request does not set. */
  policy?: JobPolicy
  /** The ended job that this job replaces. */
  replacesJobId?: string
  /** The definition that makes the job. */
  definitionId?: string
}

export interface Submission {
  input: SubmitInput
  options: SubmitOptions
}

const SUBMIT_OPERATION = 'submit'

export interface SubmitService {
  submit(caller: Caller, input: SubmitInput, options: SubmitOptions): Promise<SubmitOutcome>
  /**
   * Submits many jobs in one call. Each has its own outcome, at its index, and a bad one does not affect the others.
   */
  submitMany<Given>(
    caller: Caller,
    given: readonly Given[],
    read: (one: Given) => Submission,
  ): Promise<PromiseSettledResult<SubmitOutcome>[]>
  /** Submits in a transaction of the caller, where `write` runs the command. The caller's commit wakes the workers. */
  submitIn(write: Store['write'], caller: Caller, input: SubmitInput, options: SubmitOptions): Promise<SubmitOutcome>
  /** The answer that `submit` would give now. It stores nothing. */
  rehearse(caller: Caller, input: SubmitInput, options: SubmitOptions): Promise<SubmitOutcome>
  /** Submits by a command that does more than that. */
  submitBy(
    commandOf: (item: SubmitItem, render: RenderAccepted) => Command<SubmitOutcome>,
    caller: Caller,
    input: SubmitInput,
    options: SubmitOptions,
  ): Promise<SubmitOutcome>
}

/** A larger transaction gains nothing and holds its locks longer. */
const BATCH_ITEMS_MAX = 1_000
const BATCH_BYTES_MAX = 4 * 1024 * 1024

interface SubmitParts {
  fairTags: FairTags
  names: UserNames
  submitToWaitingPolls: SubmitToWaitingPolls
}

export function createSubmitService(deps: Deps, { fairTags, names, submitToWaitingPolls }: SubmitParts): SubmitService {
  const batcher = new Batcher<UntaggedItem, SubmitOutcome>({
    name: 'submit',
    world: deps.world,
    itemsMax: BATCH_ITEMS_MAX,
    bytesMax: BATCH_BYTES_MAX,
    inFlightMax: 2,
    sharedOutMax: 256,
    bytesOf: (item) => item.payload.length + 500,
    userOf: (item) => item.userId,
    onBatch: (batch) => deps.meter.batch(batch),
    async run(given) {
      const items = await tagged(names.knows(given) ? given : await withinNames(given))
      const alone = () => ({ ...submitJobs(items, renderAccepted), failFastOnLock: true })
      const outcomes = (await submitToWaitingPolls(items, alone)) ?? (await deps.store.write(alone()))
      tell(items, outcomes)
      return outcomes
    },
  })

  async function withinNames(items: readonly UntaggedItem[]): Promise<readonly UntaggedItem[]> {
    const refusals = await names.claim(items)
    return items.map((item, i) => {
      const refusal = item.refusal ?? refusals[i]
      return refusal === undefined ? item : { ...item, refusal }
    })
  }

  async function tagged(items: readonly UntaggedItem[]): Promise<SubmitItem[]> {
    return fairTags.known(items) ?? (await fairTags.find(items))
  }

  function tell(items: readonly SubmitItem[], outcomes: readonly SubmitOutcome[]): void {
    const queues = new Set<`queue:${string}`>()
    outcomes.forEach((outcome, i) => {
      const item = items[i]
      if (item === undefined) return
      if (outcome.kind === 'created' && outcome.due) queues.add(`queue:${outcome.queue}`)
      if (outcome.kind !== 'created') deps.evidence.notCreated(outcome)
      const code = outcome.kind === 'refused' ? outcome.refusal.code : null
      if (outcome.kind === 'refused' && outcome.refusal.code === 'MAXIMUM_REACHED') {
        deps.meter.maximumReached(outcome.refusal.details.setting)
      }
      deps.meter.submitted(outcome.kind, item.key !== null, code, item.queue)
    })
    deps.bus.wake([...queues])
  }

  return {
    submit: async (caller, input, options) => batcher.add(toItem(deps, caller, input, options)),
    submitMany: (caller, given, read) =>
      batcher.addAll(given, (one) => {
        const { input, options } = read(one)
        return toItem(deps, caller, input, options)
      }),
    // Everything runs on the caller's connection. A second connection of the same pool might never be free while
    // callers hold all of them.
    async submitIn(write, caller, input, options) {
      const items = [toItem(deps, caller, input, options)]
      const tagged = fairTags.known(items)
      if (tagged !== null) return only(await write(submitJobs(tagged, renderAccepted)))
      const { outcomes } = await fairTags.learnFrom(
        (leased) => write(submitUntagged(items, leased, renderAccepted)),
        ({ tagged }) => tagged,
      )
      return only(outcomes)
    },
    async rehearse(caller, input, options) {
      // A rehearsal does not change the fair tags.
      const item = { ...toItem(deps, caller, input, options), fairTag: 0 }
      return only(await rehearse(deps.store, submitJobs([item], renderAccepted)))
    },
    async submitBy(commandOf, caller, input, options) {
      const [item] = await tagged(await withinNames([toItem(deps, caller, input, options)]))
      if (item === undefined) throw new Error('Every item has its tag')
      const outcome = await deps.store.write(commandOf(item, renderAccepted))
      tell([item], [outcome])
      return outcome
    },
  }
}

function only([outcome]: readonly SubmitOutcome[]): SubmitOutcome {
  if (outcome === undefined) throw new Error('Every submission has an outcome')
  return outcome
}

function toItem(deps: Deps, caller: Caller, input: SubmitInput, options: SubmitOptions): UntaggedItem {
  const payload = payloadText(deps, input.payload, options.payloadJson)
  const { world } = deps
  const queue = input.queue ?? DEFAULT_QUEUE
  // The priority of a definition was checked when it was stored.
  const problem =
    (options.definitionId === undefined ? priorityProblem(deps, caller, input.priority) : null) ??
    callbackProblem(deps, input.callback_url, options)
  return {
    jobId: world.uuid(),
    userId: caller.userId,
    kind: input.kind,
    queue,
    payload,
    policy: { ...options.policy, ...policyOf(input) },
    priority: input.priority ?? DEFAULT_PRIORITY,
    labels: input.labels ?? null,
    estimatedCostMicros: toMicros(input.estimated_cost ?? 0),
    traceparent: input.traceparent ?? null,
    replacesJobId: options.replacesJobId ?? null,
    runAtMs: input.run_at === undefined ? null : Date.parse(input.run_at),
    delayMs: Math.round((input.delay_seconds ?? 0) * 1000),
    key: keyOf(input, options),
    reservationId: input.reservation_id ?? null,
    consumedReservationId: options.consumedReservation ? world.uuid() : null,
    ...(problem === null ? {} : { refusal: problem }),
    ...(options.definitionId === undefined ? {} : { definition: { id: options.definitionId, scheduledForMs: null } }),
    ...(input.callback_url === undefined ? {} : { callbackUrl: input.callback_url }),
    ...(input.artifacts?.length ? { artifacts: artifactsOf(deps, input, input.artifacts) } : {}),
  }
}

/** The callback of a job that is replaced was checked. */
function callbackProblem(
  { settings }: Deps,
  url: string | undefined,
  { replacesJobId }: SubmitOptions,
): SubmitRefusal | null {
  if (url === undefined || replacesJobId !== undefined) return null
  const problem = unresolvedUrlProblem(url, settings.get('webhooks_allow_private') === 1)
  return problem === null ? null : invalid('callback_url', `callback_url ${problem}`)
}

export function payloadText({ limits }: Deps, payload: unknown, text = JSON.stringify(payload ?? null)): string {
  const { payloadBytesMax } = limits
  if (text.length > payloadBytesMax || Buffer.byteLength(text) > payloadBytesMax) {
    throw new IchidoError('PAYLOAD_TOO_LARGE', `payload is larger than ${payloadBytesMax} bytes`, { field: 'payload' })
  }
  return text
}

function artifactsOf(deps: Deps, input: SubmitInput, artifacts: NonNullable<SubmitInput['artifacts']>) {
  blobsOf(deps)
  const { artifactBytesMax } = deps.limits
  if (artifacts.some(({ size_bytes }) => (size_bytes ?? 0) > artifactBytesMax)) {
    throw new IchidoError('PAYLOAD_TOO_LARGE', `An artifact may have up to ${artifactBytesMax} bytes`, {
      field: 'artifacts',
    })
  }
  return {
    uploadTtlMs: Math.round((input.upload_ttl_seconds ?? DEFAULT_UPLOAD_TTL_SECONDS) * 1000),
    list: artifacts.map(({ name, sha256 = null, size_bytes = null }) => ({
      artifactId: deps.world.uuid(),
      name,
      sha256,
      sizeBytes: size_bytes,
    })),
  }
}

function keyOf(input: SubmitInput, options: SubmitOptions): SubmitItem['key'] {
  if (options.key === null) return null
  return {
    key: options.key,
    operation: options.operation ?? SUBMIT_OPERATION,
    requestHash: requestHash(options.hashOver ?? whatTheKeyStandsFor(input)),
    ttlMs: Math.round((input.key_ttl_hours ?? DEFAULT_KEY_TTL_HOURS) * 3_600_000),
  }
}

/** A retry with another trace, reservation or key lifetime is still the same request. */
function whatTheKeyStandsFor(input: SubmitInput): object {
  const { idempotency_key, key_ttl_hours, traceparent, reservation_id, ...request } = input
  return request
}

type PolicyField =
  | 'max_attempts'
  | 'backoff'
  | 'timeout_seconds'
  | 'lease_ttl_seconds'
  | 'continuation_seconds'
  | 'domain'
  | 'stages'
  | 'seq_scope'

export function policyOf(input: { [Field in PolicyField]?: SubmitInput[Field] | null }): JobPolicy {
  const policy: JobPolicy = {}
  if (input.max_attempts != null) policy.max_attempts = input.max_attempts
  if (input.timeout_seconds != null) policy.timeout_seconds = input.timeout_seconds
  if (input.lease_ttl_seconds != null) policy.lease_ttl_seconds = input.lease_ttl_seconds
  if (input.continuation_seconds != null) policy.continuation_seconds = input.continuation_seconds
  if (input.domain != null) policy.domain = input.domain
  if (input.stages != null) policy.stages = input.stages
  if (input.seq_scope != null) policy.seq_scope = input.seq_scope
  if (input.backoff != null) policy.backoff = fromBackoffShape(input.backoff)
  return policy
}

/** The body of the first answer. It is stored with the key for every replay. */
export function renderAccepted(accepted: Accepted): string {
  const { jobId, kind, queue, createdAt, runAt, quotaWarnings, costLimitWarning } = accepted
  const quota = quotaWarnings.length === 0 ? '[]' : JSON.stringify(quotaWarnings)
  const cost = costLimitWarning === null ? 'null' : JSON.stringify(costLimitWarning)
  // Written by hand, in a third of the time of JSON.stringify. Ids, names and instants need no escapes.
  return `{"job_id":"${jobId}","kind":"${kind}","queue":"${queue}","state":"PENDING","created_at":"${createdAt}","run_at":"${runAt}","quota_warnings":${quota},"cost_limit_warning":${cost}}`
}

export function refusalError(refusal: SubmitRefusal): IchidoError {
  if ('replaces' in refusal) return retryRefusal(refusal.jobId, refusal.replaces)
  return new IchidoError(refusal.code, refusal.message, refusalDetails(refusal))
}

function refusalDetails(refusal: SubmitRefusal): Record<string, unknown> {
  if (refusal.code === 'IDEMPOTENCY_KEY_REUSED') return { job_id: refusal.jobId }
  if ('details' in refusal) return refusal.details
  return refusal.code === 'INVALID_PAYLOAD' ? { field: refusal.field } : {}
}

/** The refusal for a job that can be neither retried nor replaced. */
export function retryRefusal(
  jobId: string,
  refusal: Extract<SubmitRefusal, { replaces: unknown }>['replaces'],
): IchidoError {
  switch (refusal.reason) {
    case 'NOT_FOUND':
      return notFound('job', jobId)
    case 'NOT_ENDED': {
      const { state, canceling } = refusal
      const why = canceling ? 'its cancellation is in progress' : 'only a job that has ended can be retried'
      return new IchidoError('NOT_ENDED', `Job ${jobId} is ${state}: ${why}`, { state, cancel_requested: canceling })
    }
    case 'ALREADY_ENDED': {
      const message = `Job ${jobId} has succeeded; there is nothing to retry`
      return new IchidoError('ALREADY_ENDED', message, { state: refusal.state })
    }
    case 'ALREADY_REPLACED': {
      const { byJobId } = refusal
      const message = `Job ${jobId} was replaced by job ${byJobId}; retry that job`
      return new IchidoError('ALREADY_REPLACED', message, { job_id: byJobId })
    }
  }
}
