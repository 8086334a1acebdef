import { type ArtifactShape, DEFAULT_UPLOAD_TTL_SECONDS } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { ARTIFACT_STATES, ARTIFACTS_PER_JOB_MAX } from '../core/run/artifact.ts'
import { time, uuid } from './common.ts'

const NAME_BYTES_MAX = 255

/** A plain file name: workers create files with this name, so it must not leave the folder or be hidden. */
export const artifactName = z
  .string()
  .regex(
    /^(?![-. ])[^\p{C}\p{Zl}\p{Zp}/\\<>:"|?*]+(?<![. ])$/u,
    'must be a plain file name, without slashes, quotes and the like, and not begin with a dot, dash or space',
  )
  .refine(
    (name) => new TextEncoder().encode(name).length <= NAME_BYTES_MAX,
    `must have at most ${NAME_BYTES_MAX} bytes`,
  )

const sha256 = z
  .string()
  .toLowerCase()
  .regex(/^[0-9a-f]{64}$/, 'must be a SHA-256 as 64 hexadecimal digits')

/** More than any setting allows; each server has its own limit. */
const SIZE_MAX = 2 ** 50

const awaitedArtifact = z.strictObject({
  name: artifactName,
  sha256: sha256
    .optional()
    .meta({ description: 'Checked; content that the same user has sent before need not be sent again' }),
  size_bytes: z
    .int()
    .min(0)
    .max(SIZE_MAX)
    .optional()
    .meta({ description: 'Checked; required to send the file in parts' }),
})

export const awaitedArtifacts = z
  .array(awaitedArtifact)
  .max(ARTIFACTS_PER_JOB_MAX)
  .refine((list) => new Set(list.map(({ name }) => name)).size === list.length, 'must have names that differ')
  .meta({ description: 'Files that the job waits for; they are sent with POST /v1/artifacts' })

export const uploadTtlSeconds = z
  .number()
  .min(1)
  .max(86_400)
  .meta({
    description: `The job is canceled when no part of an artifact arrives for this long; default ${DEFAULT_UPLOAD_TTL_SECONDS}`,
  })

export const uploadQuery = z
  .object({
    name: artifactName,
    job_id: uuid.optional().meta({ description: 'The job that waits for it' }),
    lease_id: z.string().max(128).optional().meta({ description: 'For workers: the lease of the run that made it' }),
    sha256: sha256.optional(),
    size_bytes: z.coerce.number().int().min(0).max(SIZE_MAX).optional(),
  })
  .refine((query) => query.job_id === undefined || query.lease_id === undefined, {
    path: ['job_id'],
    error: 'and lease_id exclude each other',
  })

export type UploadQuery = z.output<typeof uploadQuery>

export const artifact = z
  .object({
    artifact_id: z.uuid(),
    job_id: z.uuid().nullable(),
    run_id: z.uuid().nullable().meta({ description: 'The run that made it; null for an input of the job' }),
    name: z.string(),
    sha256: z.string().nullable(),
    size_bytes: z.int().nullable(),
    state: z.enum(ARTIFACT_STATES),
    created_at: time,
    expires_at: time.nullable(),
  })
  .meta({ id: 'Artifact' }) satisfies z.ZodType<ArtifactShape>
