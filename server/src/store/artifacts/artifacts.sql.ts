import { ARTIFACT_STATES, UPLOAD_WAIT_MS } from '../../core/run/artifact.ts'
import { ARTIFACT_FREED } from '../limits/bytes.ts'
import { JOB_AND_END } from '../runs/rooms.sql.ts'
import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/**
 * Locks are taken in this order: upload wait, run, artifact, blob. A blob row is locked before an artifact names it, and
 * before it is checked for names, so that a blob cannot get a name while it loses its last one.
 */

const ROW = {
  id: 'text',
  job_id: 'text?',
  run_id: 'text?',
  user_id: 'text',
  name: 'text',
  sha256: 'text?',
  size_bytes: 'integer?',
  blob_id: 'text?',
  state: { oneOf: ARTIFACT_STATES },
  created_at: 'integer',
  expires_at: 'integer?',
} as const
const ARTIFACT = Object.keys(ROW).join(', ')

/** Finds contents that the user has stored before. Knowing a hash gives no access to another user's content. */
export const shareOwnBlobs = statement('share_own_blobs', {
  params: { user_id: 'text', sha256: 'text' },
  row: { user_id: 'text', sha256: 'text', blob_id: 'text', size_bytes: 'integer' },
  postgres: `SELECT t.user_id, b.sha256, b.blob_id, b.size_bytes
    FROM unnest($user_id::text[], $sha256::text[]) AS t(user_id, sha256)
    JOIN ichido.blobs b ON b.sha256 = t.sha256
    WHERE EXISTS (SELECT 1 FROM ichido.artifacts a
      WHERE a.user_id = t.user_id AND a.sha256 = t.sha256 AND a.state = 'ready')
    ORDER BY b.blob_id FOR SHARE OF b`,
  sqlite: `SELECT $user_id AS user_id, b.sha256, b.blob_id, b.size_bytes FROM ichido.blobs b
    WHERE b.sha256 = $sha256 AND EXISTS (SELECT 1 FROM ichido.artifacts a
      WHERE a.user_id = $user_id AND a.sha256 = $sha256 AND a.state = 'ready')`,
})

/** Inputs of a job that is being submitted. */
export const insertInputs = statement('insert_inputs', {
  params: {
    artifact_id: 'text',
    job_id: 'text',
    user_id: 'text',
    name: 'text',
    sha256: 'text?',
    size_bytes: 'integer?',
    blob_id: 'text?',
  },
  row: {},
  postgres: `INSERT INTO ichido.artifacts (${ARTIFACT})
    SELECT t.id, t.job_id, NULL, t.user_id, t.name, t.sha256, t.size_bytes, t.blob_id,
      CASE WHEN t.blob_id IS NULL THEN 'awaited' ELSE 'ready' END, now_ms(), NULL
    FROM unnest($artifact_id::uuid[], $job_id::uuid[], $user_id::text[], $name::text[], $sha256::text[],
        $size_bytes::bigint[], $blob_id::uuid[])
      AS t(id, job_id, user_id, name, sha256, size_bytes, blob_id)`,
  sqlite: `INSERT INTO ichido.artifacts (${ARTIFACT})
    VALUES ($artifact_id, $job_id, NULL, $user_id, $name, $sha256, $size_bytes, $blob_id,
      CASE WHEN $blob_id IS NULL THEN 'awaited' ELSE 'ready' END, now_ms(), NULL)`,
})

export const insertUploadWaits = statement('insert_upload_waits', {
  params: { job_id: 'text', upload_ttl_ms: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.upload_waits (job_id, upload_ttl_ms, expires_at)
    SELECT t.job_id, t.ttl, now_ms() + t.ttl FROM unnest($job_id::uuid[], $upload_ttl_ms::bigint[]) AS t(job_id, ttl)`,
  sqlite: `INSERT INTO ichido.upload_waits (job_id, upload_ttl_ms, expires_at)
    VALUES ($job_id, $upload_ttl_ms, now_ms() + $upload_ttl_ms)`,
})

/** Does not find artifacts of a job whose result has expired. */
export const readArtifact = statement('read_artifact', {
  params: { artifact_id: 'text' },
  row: ROW,
  sql: `SELECT ${ARTIFACT} FROM ichido.artifacts a WHERE id = $artifact_id
    AND NOT coalesce((SELECT ${EXPIRED} FROM ${JOB_AND_END} WHERE j.id = a.job_id), false)`,
})

export const readArtifactsOfJob = statement('read_artifacts_of_job', {
  params: { job_id: 'text', max: 'integer' },
  row: ROW,
  sql: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE job_id = $job_id ORDER BY id LIMIT $max`,
})

export const findInput = statement('find_input', {
  params: { job_id: 'text', name: 'text' },
  row: ROW,
  sql: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE job_id = $job_id AND name = $name AND run_id IS NULL`,
})

const AWAITS = `run_at >= ${UPLOAD_WAIT_MS}`

/** Each chunk renews the time for the job's uploads. Guards that the job still waits for them. */
export const renewUploadWait = statement('renew_upload_wait', {
  params: { job_id: 'text' },
  row: { upload_ttl_ms: 'integer' },
  sql: `UPDATE ichido.upload_waits SET expires_at = now_ms() + upload_ttl_ms WHERE job_id = $job_id AND EXISTS (
      SELECT 1 FROM ichido.ready r WHERE r.job_id = $job_id AND r.${AWAITS})
    RETURNING upload_ttl_ms`,
})

export const lockUploadWait = statement('lock_upload_wait', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: 'SELECT job_id FROM ichido.upload_waits WHERE job_id = $job_id FOR UPDATE',
  sqlite: 'SELECT job_id FROM ichido.upload_waits WHERE job_id = $job_id',
})

/** Guards that the job still waits for uploads. */
export const lockAwaitingRun = statement('lock_awaiting_run', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT job_id FROM ichido.ready WHERE job_id = $job_id AND ${AWAITS} FOR UPDATE`,
  sqlite: `SELECT job_id FROM ichido.ready WHERE job_id = $job_id AND ${AWAITS}`,
})

export const lockArtifact = statement('lock_artifact', {
  params: { artifact_id: 'text' },
  row: ROW,
  postgres: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE id = $artifact_id FOR UPDATE`,
  sqlite: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE id = $artifact_id`,
})

/** Content that exists keeps its blob. The row names the valid blob. */
export const putBlob = statement('put_blob', {
  params: { blob_id: 'text', sha256: 'text', size_bytes: 'integer' },
  row: { blob_id: 'text' },
  sql: `INSERT INTO ichido.blobs (blob_id, sha256, size_bytes, created_at)
    VALUES ($blob_id, $sha256, $size_bytes, now_ms())
    ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING blob_id`,
})

/** `keep_ms` is null for an artifact that is kept as long as its job. */
export const readyArtifact = statement('ready_artifact', {
  params: { artifact_id: 'text', blob_id: 'text', sha256: 'text', size_bytes: 'integer', keep_ms: 'integer?' },
  row: ROW,
  postgres: `UPDATE ichido.artifacts SET state = 'ready', blob_id = $blob_id, sha256 = $sha256, size_bytes = $size_bytes::bigint,
      expires_at = CASE WHEN $keep_ms::bigint IS NULL THEN NULL ELSE now_ms() + $keep_ms::bigint END
    WHERE id = $artifact_id AND state = 'awaited' RETURNING ${ARTIFACT}`,
  sqlite: `UPDATE ichido.artifacts SET state = 'ready', blob_id = $blob_id, sha256 = $sha256, size_bytes = $size_bytes,
      expires_at = CASE WHEN $keep_ms IS NULL THEN NULL ELSE now_ms() + $keep_ms END
    WHERE id = $artifact_id AND state = 'awaited' RETURNING ${ARTIFACT}`,
})

export const countAwaited = statement('count_awaited', {
  params: { job_id: 'text' },
  row: { count: 'integer' },
  sql: `SELECT count(*) AS count FROM ichido.artifacts WHERE job_id = $job_id AND run_id IS NULL AND state = 'awaited'`,
})

/** The run is due at the time that its job asked for. The promoter then handles it as any delayed run. */
export const endUploadWait = statement('end_upload_wait', {
  params: { job_id: 'text' },
  row: { queue: 'text' },
  sql: `UPDATE ichido.ready SET run_at = CASE WHEN run_at - ${UPLOAD_WAIT_MS} > now_ms() THEN run_at - ${UPLOAD_WAIT_MS} ELSE now_ms() END
    WHERE job_id = $job_id AND ${AWAITS} RETURNING queue`,
})

export const deleteUploadWaits = statement('delete_upload_waits', {
  params: { job_id: 'text' },
  row: {},
  postgres: 'DELETE FROM ichido.upload_waits WHERE job_id = ANY($job_id::uuid[])',
  sqlite: 'DELETE FROM ichido.upload_waits WHERE job_id = $job_id',
})

/** Skips locked waits: their uploads go on. */
export const lockOverdue = statement('lock_overdue', {
  params: { max: 'integer' },
  row: { job_id: 'text' },
  postgres: `SELECT job_id FROM ichido.upload_waits WHERE expires_at <= (SELECT now_ms())
    ORDER BY expires_at LIMIT $max FOR UPDATE SKIP LOCKED`,
  sqlite: 'SELECT job_id FROM ichido.upload_waits WHERE expires_at <= (SELECT now_ms()) ORDER BY expires_at LIMIT $max',
})

/** The jobs whose runs still wait for uploads. They are locked in this order. */
export const lockAwaitingRuns = statement('lock_awaiting_runs', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT job_id FROM ichido.ready WHERE job_id = ANY($job_id::uuid[]) AND ${AWAITS} ORDER BY job_id FOR UPDATE`,
  sqlite: `SELECT job_id FROM ichido.ready WHERE job_id = $job_id AND ${AWAITS}`,
})

const LEASED = 'job_id = $job_id AND worker_id = $worker_id AND token = $token'

/** Guards the holder, and keeps the run held while the worker's file is recorded. */
export const shareHeldRun = statement('share_held_run', {
  params: { job_id: 'text', worker_id: 'text', token: 'text' },
  row: { job_id: 'text', run_id: 'text', user_id: 'text' },
  postgres: `SELECT job_id, run_id, user_id FROM ichido.held WHERE ${LEASED} FOR SHARE`,
  sqlite: `SELECT job_id, run_id, user_id FROM ichido.held WHERE ${LEASED}`,
})

/** Answers if the worker holds the job's run. */
export const findLeaseOfWorker = statement('find_lease_of_worker', {
  params: { job_id: 'text', worker_id: 'text' },
  row: { job_id: 'text' },
  sql: 'SELECT job_id FROM ichido.held WHERE job_id = $job_id AND worker_id = $worker_id AND token IS NOT NULL',
})

export const countOutputs = statement('count_outputs', {
  params: { run_id: 'text' },
  row: { count: 'integer' },
  sql: 'SELECT count(*) AS count FROM ichido.artifacts WHERE run_id = $run_id',
})

/** An artifact that is ready stays as it is. */
export const openOutput = statement('open_output', {
  params: {
    artifact_id: 'text',
    job_id: 'text',
    run_id: 'text',
    user_id: 'text',
    name: 'text',
    sha256: 'text?',
    size_bytes: 'integer?',
    upload_ttl_ms: 'integer',
  },
  row: ROW,
  sql: `INSERT INTO ichido.artifacts AS a (${ARTIFACT})
    VALUES ($artifact_id, $job_id, $run_id, $user_id, $name, $sha256, $size_bytes, NULL, 'awaited', now_ms(),
      now_ms() + $upload_ttl_ms)
    ON CONFLICT (run_id, name) WHERE run_id IS NOT NULL DO UPDATE SET
      sha256 = CASE WHEN a.state = 'ready' THEN a.sha256 ELSE excluded.sha256 END,
      size_bytes = CASE WHEN a.state = 'ready' THEN a.size_bytes ELSE excluded.size_bytes END,
      expires_at = CASE WHEN a.state = 'ready' THEN a.expires_at ELSE excluded.expires_at END
    RETURNING ${ARTIFACT}`,
})

export const findOutput = statement('find_output', {
  params: { run_id: 'text', name: 'text' },
  row: ROW,
  sql: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE run_id = $run_id AND name = $name`,
})

/** Finds a complete artifact without a job. */
export const findUnbound = statement('find_unbound', {
  params: { user_id: 'text', name: 'text', sha256: 'text?' },
  row: ROW,
  sql: `SELECT ${ARTIFACT} FROM ichido.artifacts
    WHERE user_id = $user_id AND name = $name AND sha256 = $sha256 AND state = 'ready' AND job_id IS NULL`,
})

/** A user has at most one unfinished upload of a name. */
export const openUnbound = statement('open_unbound', {
  params: {
    artifact_id: 'text',
    user_id: 'text',
    name: 'text',
    sha256: 'text?',
    size_bytes: 'integer?',
    upload_ttl_ms: 'integer',
  },
  row: ROW,
  sql: `INSERT INTO ichido.artifacts (${ARTIFACT})
    VALUES ($artifact_id, NULL, NULL, $user_id, $name, $sha256, $size_bytes, NULL, 'awaited', now_ms(),
      now_ms() + $upload_ttl_ms)
    ON CONFLICT (user_id, name) WHERE job_id IS NULL AND state = 'awaited' DO UPDATE SET
      sha256 = excluded.sha256, size_bytes = excluded.size_bytes, expires_at = excluded.expires_at
    RETURNING ${ARTIFACT}`,
})

export const renewArtifact = statement('renew_artifact', {
  params: { artifact_id: 'text', upload_ttl_ms: 'integer' },
  row: { id: 'text' },
  sql: `UPDATE ichido.artifacts SET expires_at = now_ms() + $upload_ttl_ms
    WHERE id = $artifact_id AND state = 'awaited' RETURNING id`,
})

/** Finds abandoned uploads, and artifacts that no job used. */
export const readExpired = statement('read_expired', {
  params: { max: 'integer' },
  row: { id: 'text', user_id: 'text' },
  sql: 'SELECT id, user_id FROM ichido.artifacts WHERE expires_at <= (SELECT now_ms()) ORDER BY expires_at LIMIT $max',
})

/** Guards that the artifacts are still expired. Their users are locked. */
export const deleteExpired = statement('delete_expired', {
  params: { artifact_id: 'text' },
  row: { user_id: 'text', bytes: 'integer?' },
  postgres: `DELETE FROM ichido.artifacts WHERE id IN (
      SELECT id FROM ichido.artifacts WHERE id = ANY($artifact_id::uuid[]) AND expires_at <= (SELECT now_ms())
      FOR UPDATE SKIP LOCKED) RETURNING ${ARTIFACT_FREED}`,
  sqlite: `DELETE FROM ichido.artifacts WHERE id = $artifact_id AND expires_at <= (SELECT now_ms())
    RETURNING ${ARTIFACT_FREED}`,
})

export const pageOfBlobs = statement('page_of_blobs', {
  params: { after: 'text', max: 'integer' },
  row: { blob_id: 'text' },
  sql: 'SELECT blob_id FROM ichido.blobs WHERE blob_id > $after ORDER BY blob_id LIMIT $max',
})

/** Locks the blobs that no artifact names. `deleteUnnamed` checks them once more under the lock. */
export const lockUnnamed = statement('lock_unnamed', {
  params: { blob_id: 'text' },
  row: { blob_id: 'text' },
  postgres: `SELECT b.blob_id FROM ichido.blobs b WHERE b.blob_id = ANY($blob_id::uuid[])
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id) ORDER BY b.blob_id FOR UPDATE OF b`,
  sqlite: `SELECT b.blob_id FROM ichido.blobs b WHERE b.blob_id = $blob_id
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id)`,
})

export const deleteUnnamed = statement('delete_unnamed', {
  params: { blob_id: 'text' },
  row: { blob_id: 'text', sha256: 'text' },
  postgres: `DELETE FROM ichido.blobs b WHERE b.blob_id = ANY($blob_id::uuid[])
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id) RETURNING b.blob_id, b.sha256`,
  sqlite: `DELETE FROM ichido.blobs WHERE blob_id = $blob_id
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = blobs.blob_id) RETURNING blob_id, sha256`,
})

/** Finds uploads that may still continue. */
export const readOpenUploads = statement('read_open_uploads', {
  params: { artifact_id: 'text' },
  row: { id: 'text' },
  postgres: `SELECT a.id FROM ichido.artifacts a WHERE a.id = ANY($artifact_id::uuid[]) AND a.state = 'awaited'
    AND (a.expires_at IS NOT NULL OR EXISTS (SELECT 1 FROM ichido.upload_waits h WHERE h.job_id = a.job_id
      AND (SELECT r.version FROM ichido.ready r WHERE r.job_id = h.job_id) IS NOT NULL))`,
  sqlite: `SELECT a.id FROM ichido.artifacts a WHERE a.id = $artifact_id AND a.state = 'awaited'
    AND (a.expires_at IS NOT NULL OR EXISTS (SELECT 1 FROM ichido.upload_waits h WHERE h.job_id = a.job_id
      AND (SELECT r.version FROM ichido.ready r WHERE r.job_id = h.job_id) IS NOT NULL))`,
})

export const readBlobs = statement('read_blobs', {
  params: { blob_id: 'text' },
  row: { blob_id: 'text' },
  postgres: 'SELECT blob_id FROM ichido.blobs WHERE blob_id = ANY($blob_id::uuid[])',
  sqlite: 'SELECT blob_id FROM ichido.blobs WHERE blob_id = $blob_id',
})
