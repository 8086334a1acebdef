import { IchidoError, type JobShape, type SubmitResponse } from '@ichido/sdk/protocol'
import type { SubmitInput } from '../../../contract/submit.ts'
import type { Caller } from '../../../core/limits/roles.ts'
import type { Services } from '../../../services/index.ts'
import type { SubmitOutcome, SubmitRefusal } from '../../../services/submission/submit-job.ts'
import {
  type CloudAnswer,
  type CloudSubmit,
  CONFIG_LABEL,
  cloudStatus,
  KIND,
  PROVIDER_LABEL,
  submitBody,
} from './shapes.ts'

const OPERATION = 'cloud.submit'

interface CloudSubmission {
  provider: string
  body: CloudSubmit
  key: string | null
  dryRun: boolean
}

export async function submitCloud(
  services: Services,
  caller: Caller,
  { provider, body, key, dryRun }: CloudSubmission,
): Promise<CloudAnswer> {
  const found = body.config_name_to_load == null ? null : await services.definitions.find(body.config_name_to_load)
  // A caller who may submit sees the payload of the definition, so only definitions of this kind count.
  const definition = found?.kind === KIND ? found : null
  const input = toInput(provider, body, definition?.queue ?? `cloud.${provider}`, definition?.payload)
  const { submission } = services
  const submitting = submission[dryRun ? 'rehearse' : 'submit'](caller, input, {
    key,
    operation: OPERATION,
    hashOver: namedBy(provider, body),
    // The job consumes a reservation that the caller names. Otherwise a consumed one is stored, as in S0.
    consumedReservation: input.reservation_id === undefined,
    policy: definition?.policy ?? {},
    ...(definition === null ? {} : { definitionId: definition.definitionId }),
  })
  const outcome = await submitting.catch((error: unknown) => {
    throw inFieldsOf(body, error)
  })
  const answer = await answerTo(services, caller, outcome, dryRun, input.artifacts !== undefined)
  return dryRun ? { ...answer, dry_run: true } : answer
}

/**
 * The payload consists of the fields of the body. The refusal names the largest field, which the sender should shorten.
 */
function inFieldsOf(body: CloudSubmit, error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.details.field !== 'payload') return error
  const sizeOf = (name: string) => JSON.stringify(body[name] ?? null).length
  const [field = 'body'] = Object.keys(body).toSorted((a, b) => sizeOf(b) - sizeOf(a))
  return new IchidoError(error.code, `${error.message}; its largest part is ${field}`, { ...error.details, field })
}

/** The callback has another name here. */
function inWordsOfS0({ message, ...refusal }: SubmitRefusal): string {
  const isCallback = 'field' in refusal && refusal.field === 'callback_url'
  return isCallback ? message.replace('callback_url', 'webhook_url') : message
}

/**
 * The request that a key stands for. With a name it is the provider and the name, because S0's CI example sends another
 * tracker_run_name with the same key and means the same job. Without a name it is the config.
 */
function namedBy(provider: string, { config_name_to_load: name, config, dataloader_config }: CloudSubmit): object {
  if (name != null) return { provider, config: name }
  return { provider, inline: { config, dataloader_config: dataloader_config ?? null } }
}

async function answerTo(
  { jobs, deps }: Services,
  caller: Caller,
  outcome: SubmitOutcome,
  dryRun: boolean,
  hasArtifacts: boolean,
): Promise<CloudAnswer> {
  if (outcome.kind === 'refused') return { ...NO_JOB, error: inWordsOfS0(outcome.refusal) }
  const { quota_warnings, cost_limit_warning } = JSON.parse(outcome.body) as SubmitResponse
  const warnings = { quota_warnings, cost_limit_warning }
  const replayed = outcome.kind === 'replayed'
  // A job that is due at once does not wait for artifacts.
  if (dryRun && !replayed) return { ...NO_JOB, ...warnings, success: true, data_uploaded: outcome.due }
  // Only a replay, or a job with artifacts, has a state worth reading.
  const job = replayed || hasArtifacts ? await whatIsKept(jobs, caller, outcome.jobId) : null
  return {
    success: true,
    job_id: outcome.jobId,
    status: replayed ? job && cloudStatus(job, deps.world.now()) : 'uploading',
    data_uploaded: !job?.awaits_artifacts,
    idempotent_hit: replayed,
    ...warnings,
    error: null,
  }
}

/** Null: retention has removed the job, and its key still exists. */
async function whatIsKept(jobs: Services['jobs'], caller: Caller, jobId: string): Promise<JobShape | null> {
  try {
    return await jobs.get(caller, jobId)
  } catch (error) {
    if (error instanceof IchidoError && error.code === 'NOT_FOUND') return null
    throw error
  }
}

const NO_JOB: CloudAnswer = {
  success: false,
  job_id: null,
  status: null,
  data_uploaded: false,
  idempotent_hit: false,
  quota_warnings: [],
  cost_limit_warning: null,
  error: null,
}

function toInput(provider: string, body: CloudSubmit, queue: string, lent: unknown): SubmitInput {
  const {
    idempotency_key,
    dry_run,
    estimated_cost,
    reservation_id,
    key_ttl_hours,
    artifacts,
    upload_ttl_seconds,
    ...rest
  } = body
  const said = Object.entries(rest).filter(([name, value]) => value !== null || !Object.hasOwn(submitBody.shape, name))
  const name = body.config_name_to_load || body.config_name
  return {
    kind: KIND,
    queue,
    payload: { ...(isObject(lent) ? lent : {}), ...Object.fromEntries(said), provider },
    labels: { [PROVIDER_LABEL]: provider, ...(name ? { [CONFIG_LABEL]: name } : {}) },
    estimated_cost: estimated_cost ?? undefined,
    reservation_id: reservation_id ?? undefined,
    // Forms send an empty text.
    callback_url: body.webhook_url || undefined,
    key_ttl_hours: key_ttl_hours ?? undefined,
    artifacts: artifacts ?? undefined,
    upload_ttl_seconds: upload_ttl_seconds ?? undefined,
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
