import { IchidoError, type JobShape, type SubmitResponse } from '@ichido/sdk/protocol'
import type { SubmitInput } from '../../../contract/submit.ts'
import type { Caller } from '../../../core/limits/roles.ts'
import type { Services } from '../../../services/index.ts'
import type { SubmitOutcome } from '../../../services/submission/submit-job.ts'
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
  // Whoever may submit sees what it is lent: of other jobs' definitions that is nobody's business here.
  const definition = found?.kind === KIND ? found : null
  const input = toInput(provider, body, definition?.queue ?? `cloud.${provider}`, definition?.payload)
  const { submission } = services
  const submitting = submission[dryRun ? 'rehearse' : 'submit'](caller, input, {
    key,
    operation: OPERATION,
    hashOver: namedBy(provider, body),
    // One that the caller brings is consumed by the job; otherwise S0's row is written beside it.
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

/** The payload is made of the body's fields, and the sender knows those: the largest is the one to make smaller. */
function inFieldsOf(body: CloudSubmit, error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.details.field !== 'payload') return error
  const sizeOf = (name: string) => JSON.stringify(body[name] ?? null).length
  const [field = 'body'] = Object.keys(body).toSorted((a, b) => sizeOf(b) - sizeOf(a))
  return new IchidoError(error.code, `${error.message}; its largest part is ${field}`, { ...error.details, field })
}

/**
 * What a key stands for. Under a name it is provider and name alone: S0's CI example sends another tracker_run_name under the
 * same key, and means the same job. A config without a name is known by what is in it.
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
  if (outcome.kind === 'refused') return { ...NO_JOB, error: outcome.refusal.message }
  const { quota_warnings, cost_limit_warning } = JSON.parse(outcome.body) as SubmitResponse
  const warnings = { quota_warnings, cost_limit_warning }
  const replayed = outcome.kind === 'replayed'
  // A job that is due at once waits for no artifact.
  if (dryRun && !replayed) return { ...NO_JOB, ...warnings, success: true, data_uploaded: outcome.due }
  // Without artifacts nothing can be outstanding, and a first answer has nothing to ask for.
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

/** A key may outlive what is kept of its job. */
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
    key_ttl_hours: key_ttl_hours ?? undefined,
    artifacts: artifacts ?? undefined,
    upload_ttl_seconds: upload_ttl_seconds ?? undefined,
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
