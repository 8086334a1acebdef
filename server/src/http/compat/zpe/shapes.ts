import { errorText, type JobDetail, type JobState } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { failedRequest } from '../../../contract/leases.ts'
import { enrollRequest, registerRequest, shownText } from '../../../contract/workers.ts'
import { WORKER_LOST } from '../../../core/run/run-state.ts'
import { LONGER_LEASE } from '../../../services/runs/finish-by-job.ts'

/** The requests and answers of S1. Other fields are ignored. */

const POSITIONS = /^\s*ATOMIC_POSITIONS\b/i
/** The beginning of the next card or namelist. */
const NEXT =
  /^\s*(&|\/|(ATOMIC_SPECIES|ATOMIC_POSITIONS|ATOMIC_VELOCITIES|ATOMIC_FORCES|K_POINTS|ADDITIONAL_K_POINTS|CELL_PARAMETERS|CONSTRAINTS|OCCUPATIONS|SOLVENTS|HUBBARD)\b)/i
/** A symbol and three coordinates. */
const WORDS_OF_ATOM = 4

/** The queue and the kind of S1's jobs, and the definition that may set their policy. */
export const ZPE = 'zpe'

const ZPE_STATUSES = ['queued', 'started', 'finished', 'failed'] as const
type ZpeStatus = (typeof ZPE_STATUSES)[number]

const STATUS_OF: Readonly<Record<JobState, ZpeStatus>> = {
  PENDING: 'queued',
  ASSIGNED: 'queued',
  ORPHANED: 'queued',
  RUNNING: 'started',
  SUCCEEDED: 'finished',
  FAILED: 'failed',
  TIMED_OUT: 'failed',
  CANCELED: 'failed',
}

const ATOMS_MAX = 10_000

/** Pydantic clients send null for fields without a value. */
const open = <T extends z.ZodType>(schema: T) => schema.nullish()

/** The modes of S1's back end. A worker stops at any other. */
const CALC_MODES = ['new', 'continue'] as const

/**
 * The whole body is the payload, with fields that are not named here, because workers know more fields than S1. It
 * refuses jobs on which every worker would fail, four times and hours later.
 */
export const zpeJob = z
  .looseObject({
    content: z.string().min(1).meta({ description: 'An input of pw.x, with at least one atom in ATOMIC_POSITIONS' }),
    mobile_indices: z
      .array(z.int().min(0))
      .min(1)
      .max(ATOMS_MAX)
      .meta({ description: 'The atoms that vibrate, counted from 0, each once' }),
    calc_mode: open(z.enum(CALC_MODES)),
    use_environ: open(z.boolean()),
  })
  .superRefine(({ content, mobile_indices: indices }, context) => {
    const refuse = (path: (string | number)[], message: string) => context.addIssue({ code: 'custom', path, message })
    const atoms = countAtoms(content)
    if (atoms === 0) {
      return refuse(
        ['content'],
        'has no atoms: an input of pw.x lists them under ATOMIC_POSITIONS, each with x, y and z',
      )
    }
    const outside = indices.findIndex((index) => index >= atoms)
    if (outside !== -1) {
      return refuse(['mobile_indices', outside], `must be less than ${atoms}, the number of atoms in content`)
    }
    if (new Set(indices).size === indices.length) return
    const repeated = indices.findIndex((index, i) => indices.indexOf(index) < i)
    refuse(['mobile_indices', repeated], 'names an atom that is in the list already')
  })
  .meta({ id: 'ZpeJobRequest' })

const time = z.iso.datetime()

export const zpeAccepted = z.object({ job_id: z.uuid() })
export const zpeState = z
  .object({
    status: z.enum(ZPE_STATUSES),
    detail: z.string().nullable().meta({ description: 'The problem, if there is one' }),
    updated_at: time,
  })
  .meta({ id: 'ZpeStatus' })
export const zpeResult = z.object({ result: z.unknown() })
export const filesQuery = z.object({ kind: z.enum(['summary', 'freqs']) })

export const zpeEnroll = z.object({
  ttl_seconds: open(enrollRequest.shape.ttl_seconds),
  label: open(shownText).meta({ description: 'An empty label counts as left out' }),
})
export const zpeEnrollToken = z
  .object({ token: z.string(), expires_at: time, ttl_seconds: z.int(), label: z.string().nullable() })
  .meta({ id: 'ZpeEnrollToken' })

export const zpeRegister = z.object({
  token: registerRequest.shape.enroll_token,
  name: open(shownText).meta({ description: 'An empty name counts as left out' }),
  meta: open(registerRequest.shape.meta),
})
export const zpeRegistered = z
  .object({
    server_id: z.string(),
    worker_id: z.string().meta({ description: 'The same' }),
    registered_at: time,
    name: z.string(),
    worker_token: z.string(),
    token_expires_at: time,
    token_ttl_seconds: z.int(),
  })
  .meta({ id: 'ZpeServer' })
export const zpeRevoked = z.object({ revoked_count: z.int().meta({ description: 'How many tokens were revoked' }) })

export const zpeLease = z
  .object({ job_id: z.uuid(), payload: z.unknown(), lease_id: z.string(), lease_ttl_seconds: z.number() })
  .meta({ id: 'ZpeLease' })

const leaseId = open(z.string()).meta({
  description: 'Default: the header X-Lease-Id, or else the last lease of this worker on this job',
})

export const zpeReport = z
  .object({
    lease_id: leaseId,
    result: z.record(z.string(), z.unknown()),
    summary_text: z.string(),
    freqs_csv: z.string(),
    meta: open(z.record(z.string(), z.unknown())).meta({
      description: 'Not part of the outcome; it may differ in a repeat',
    }),
  })
  .meta({ id: 'ZpeResultReport' })
export const zpeReported = z.object({ ok: z.literal(true), idempotent: z.boolean() })

const { error_code, error_message, traceback, retryable } = failedRequest.shape
export const zpeFailure = z
  .object({ lease_id: leaseId, error_code, error_message, traceback, retryable: open(retryable.unwrap()) })
  .meta({ id: 'ZpeFailureReport' })
export const zpeFailed = z.object({ ok: z.literal(true), requeued: z.boolean(), retry_count: z.int() })

export function renderState(job: JobDetail): z.output<typeof zpeState> {
  const status = STATUS_OF[job.state]
  const run = job.runs.at(-1)
  return {
    status,
    detail: detailOf(job, status),
    updated_at: run?.finished_at ?? run?.started_at ?? run?.assigned_at ?? run?.created_at ?? job.created_at,
  }
}

/** The error of the last failed run, also while the job waits for its next run. */
function detailOf(job: JobDetail, status: ZpeStatus): string | null {
  if (job.state === 'CANCELED') return 'The job was canceled'
  if (status !== 'failed' && status !== 'queued') return null
  const run = job.runs.findLast(({ error }) => error !== null)
  if (run?.error == null) return null
  // S1's workers send no heartbeats, so a lost worker means that the lease was too short.
  if (run.error.code === WORKER_LOST.code && run.lease_expires_at !== null) {
    return `No result came before the lease ended at ${run.lease_expires_at}; if calculations take longer, ${LONGER_LEASE}`
  }
  return errorText(run.error)
}

/**
 * The number of atoms in an input of pw.x: the lines of its card ATOMIC_POSITIONS with a symbol and three coordinates.
 */
export function countAtoms(content: string): number {
  const lines = content.split(/\r?\n/)
  const begin = lines.findIndex((line) => POSITIONS.test(line)) + 1
  if (begin === 0) return 0
  const card = lines.slice(begin)
  const end = card.findIndex((line) => NEXT.test(line))
  const own = end === -1 ? card : card.slice(0, end)
  return own.filter((line) => wordsOf(line).length >= WORDS_OF_ATOM).length
}

function wordsOf(line: string): string[] {
  const [text = ''] = line.split(/[!#]/, 1)
  return text.split(/\s+/).filter((word) => word !== '')
}
