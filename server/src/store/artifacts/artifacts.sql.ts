import { HELD_MS } from '../../core/run/artifact.ts'
import { ARTIFACT_FREED } from '../limits/bytes.sql.ts'
import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/**
 * Locks are taken in this order: held run, run, artifact, blob. A blob row is locked before it is named, and before it is
 * looked at whether anybody names it, so that the last name cannot go while another one comes.
 */

const ARTIFACT = 'id, job_id, run_id, user_id, name, sha256, size_bytes, blob_id, state, created_at, expires_at'

/** Takes user, sha256: which of this user's own contents are here already. Knowing a hash alone gives nobody anything. */
export const shareOwnBlobs = statement('share_own_blobs', {
  postgres: `SELECT t.user_id, b.sha256, b.blob_id, b.size_bytes FROM unnest($1::text[], $2::text[]) AS t(user_id, sha256)
    JOIN ichido.blobs b ON b.sha256 = t.sha256
    WHERE EXISTS (SELECT 1 FROM ichido.artifacts a
      WHERE a.user_id = t.user_id AND a.sha256 = t.sha256 AND a.state = 'ready')
    ORDER BY b.blob_id FOR SHARE OF b`,
  sqlite: `SELECT $1 AS user_id, b.sha256, b.blob_id, b.size_bytes FROM ichido.blobs b
    WHERE b.sha256 = $2 AND EXISTS (SELECT 1 FROM ichido.artifacts a
      WHERE a.user_id = $1 AND a.sha256 = $2 AND a.state = 'ready')`,
})

/** Takes artifact, job, user, name, sha256, size, blob: inputs of a job that is being submitted. */
export const insertInputs = statement('insert_inputs', {
  postgres: `INSERT INTO ichido.artifacts (${ARTIFACT})
    SELECT t.id, t.job_id, NULL, t.user_id, t.name, t.sha256, t.size_bytes, t.blob_id,
      CASE WHEN t.blob_id IS NULL THEN 'awaited' ELSE 'ready' END, now_ms(), NULL
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::uuid[])
      AS t(id, job_id, user_id, name, sha256, size_bytes, blob_id)`,
  sqlite: `INSERT INTO ichido.artifacts (${ARTIFACT})
    VALUES ($1, $2, NULL, $3, $4, $5, $6, $7, CASE WHEN $7 IS NULL THEN 'awaited' ELSE 'ready' END, now_ms(), NULL)`,
})

/** Takes run, job, time in ms between chunks. */
export const insertHeldRuns = statement('insert_held_runs', {
  postgres: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at)
    SELECT t.run_id, t.job_id, t.ttl, now_ms() + t.ttl FROM unnest($1::uuid[], $2::uuid[], $3::bigint[])
      AS t(run_id, job_id, ttl)`,
  sqlite: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at) VALUES ($1, $2, $3, now_ms() + $3)`,
})

/** Those of a job whose result has outlived its queue's time are gone. */
export const readArtifact = statement(
  'read_artifact',
  `SELECT ${ARTIFACT} FROM ichido.artifacts a WHERE id = $1 AND NOT coalesce((SELECT ${EXPIRED} FROM ichido.jobs j
    JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.id = a.job_id), false)`,
)

/** Takes a job, and how many at most. */
export const readArtifactsOfJob = statement(
  'read_artifacts_of_job',
  `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE job_id = $1 ORDER BY id LIMIT $2`,
)

/** Takes a job: whose it is. */
export const readOwnerOfJob = statement('read_owner_of_job', 'SELECT user_id FROM ichido.jobs WHERE id = $1')

export const findInput = statement(
  'find_input',
  `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE job_id = $1 AND name = $2 AND run_id IS NULL`,
)

/** Takes a job. Each chunk gives its uploads that much time again; a run that is held no longer gets none. */
export const renewHeldRun = statement(
  'renew_held_run',
  `UPDATE ichido.held_runs SET expires_at = now_ms() + upload_ttl_ms WHERE job_id = $1 AND EXISTS (
      SELECT 1 FROM ichido.runs r WHERE r.id = held_runs.run_id AND r.state = 'PENDING' AND r.run_at >= ${HELD_MS})
    RETURNING upload_ttl_ms`,
)

export const lockHeldRun = statement('lock_held_run', {
  postgres: 'SELECT run_id FROM ichido.held_runs WHERE job_id = $1 FOR UPDATE',
  sqlite: 'SELECT run_id FROM ichido.held_runs WHERE job_id = $1',
})

/** Takes a run; answers while it is held. */
export const lockRunOfUpload = statement('lock_run_of_upload', {
  postgres: `SELECT id FROM ichido.runs WHERE id = $1 AND state || '' = 'PENDING' AND run_at >= ${HELD_MS} FOR UPDATE`,
  sqlite: `SELECT id FROM ichido.runs WHERE id = $1 AND state = 'PENDING' AND run_at >= ${HELD_MS}`,
})

export const lockArtifact = statement('lock_artifact', {
  postgres: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE id = $1 FOR UPDATE`,
  sqlite: `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE id = $1`,
})

/** Takes blob, sha256, size. Content that is here already keeps its blob; the answer names the one that counts. */
export const putBlob = statement(
  'put_blob',
  `INSERT INTO ichido.blobs (blob_id, sha256, size_bytes, created_at) VALUES ($1, $2, $3, now_ms())
    ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING blob_id`,
)

/** Takes artifact, blob, sha256, size, and for how long it is kept (null: as long as its job). */
export const readyArtifact = statement('ready_artifact', {
  postgres: `UPDATE ichido.artifacts SET state = 'ready', blob_id = $2, sha256 = $3, size_bytes = $4::bigint,
      expires_at = CASE WHEN $5::bigint IS NULL THEN NULL ELSE now_ms() + $5::bigint END
    WHERE id = $1 AND state = 'awaited' RETURNING ${ARTIFACT}`,
  sqlite: `UPDATE ichido.artifacts SET state = 'ready', blob_id = $2, sha256 = $3, size_bytes = $4,
      expires_at = CASE WHEN $5 IS NULL THEN NULL ELSE now_ms() + $5 END
    WHERE id = $1 AND state = 'awaited' RETURNING ${ARTIFACT}`,
})

export const countAwaited = statement(
  'count_awaited',
  `SELECT count(*) AS count FROM ichido.artifacts WHERE job_id = $1 AND run_id IS NULL AND state = 'awaited'`,
)

/** Takes a run. It is due when it was to run, and the promoter lets it in then, as it does every delayed run. */
export const releaseHeldRun = statement(
  'release_held_run',
  `UPDATE ichido.runs SET run_at = CASE WHEN run_at - ${HELD_MS} > now_ms() THEN run_at - ${HELD_MS} ELSE now_ms() END
    WHERE id = $1 AND state = 'PENDING' AND run_at >= ${HELD_MS} RETURNING queue, job_id`,
)

export const deleteHeldRuns = statement('delete_held_runs', {
  postgres: 'DELETE FROM ichido.held_runs WHERE run_id = ANY($1::uuid[])',
  sqlite: 'DELETE FROM ichido.held_runs WHERE run_id = $1',
})

/** Takes a maximum. Asked again after a wait for its lock, a run whose upload went on meanwhile is not among them. */
export const lockOverdue = statement('lock_overdue', {
  postgres: `SELECT run_id FROM ichido.held_runs WHERE expires_at <= (SELECT now_ms())
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED`,
  sqlite: 'SELECT run_id FROM ichido.held_runs WHERE expires_at <= (SELECT now_ms()) ORDER BY expires_at LIMIT $1',
})

const CANCELED = 'r.id, r.job_id, r.run_no, r.kind, r.state, r.attempt, r.last_event_n'

/** Takes run, error. Guards that it is still held; one that has ended is not locked either, a retry may be at it. */
export const cancelHeldRuns = statement('cancel_held_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[]) AS t(run_id, error)
      JOIN ichido.runs l ON l.id = t.run_id AND l.state || '' = 'PENDING' ORDER BY l.id FOR UPDATE OF l)
    UPDATE ichido.runs r SET state = 'CANCELED', version = r.version + 1, finished_at = now_ms(), error = t.error,
      last_event_n = r.last_event_n + 1
    FROM t WHERE r.id = t.run_id AND r.state || '' = 'PENDING' AND r.run_at >= ${HELD_MS} RETURNING ${CANCELED}`,
  sqlite: `UPDATE ichido.runs AS r SET state = 'CANCELED', version = version + 1, finished_at = now_ms(), error = $2,
      last_event_n = last_event_n + 1
    WHERE id = $1 AND state = 'PENDING' AND run_at >= ${HELD_MS} RETURNING ${CANCELED.replaceAll('r.', '')}`,
})

/** Takes a run, a worker and a lease: holds the run where it is while the worker's file is written down. */
export const shareLeasedRun = statement('share_leased_run', {
  postgres: `SELECT id, job_id, user_id FROM ichido.runs WHERE id = $1 AND state || '' IN ('ASSIGNED', 'RUNNING')
    AND assigned_worker_id = $2 AND lease_id = $3 FOR SHARE`,
  sqlite: `SELECT id, job_id, user_id FROM ichido.runs WHERE id = $1 AND state IN ('ASSIGNED', 'RUNNING')
    AND assigned_worker_id = $2 AND lease_id = $3`,
})

/** Takes a job and a worker: does it hold the job's lease? */
export const findLeaseOfWorker = statement(
  'find_lease_of_worker',
  `SELECT id FROM ichido.runs WHERE job_id = $1 AND state || '' IN ('ASSIGNED', 'RUNNING') AND assigned_worker_id = $2
    AND lease_id IS NOT NULL`,
)

export const countOutputs = statement(
  'count_outputs',
  'SELECT count(*) AS count FROM ichido.artifacts WHERE run_id = $1',
)

/** Takes artifact, job, run, user, name, sha256, size, time in ms between chunks. One that is ready stays as it is. */
export const openOutput = statement(
  'open_output',
  `INSERT INTO ichido.artifacts AS a (${ARTIFACT}) VALUES ($1, $2, $3, $4, $5, $6, $7, NULL, 'awaited', now_ms(), now_ms() + $8)
    ON CONFLICT (run_id, name) WHERE run_id IS NOT NULL DO UPDATE SET
      sha256 = CASE WHEN a.state = 'ready' THEN a.sha256 ELSE excluded.sha256 END,
      size_bytes = CASE WHEN a.state = 'ready' THEN a.size_bytes ELSE excluded.size_bytes END,
      expires_at = CASE WHEN a.state = 'ready' THEN a.expires_at ELSE excluded.expires_at END
    RETURNING ${ARTIFACT}`,
)

export const findOutput = statement(
  'find_output',
  `SELECT ${ARTIFACT} FROM ichido.artifacts WHERE run_id = $1 AND name = $2`,
)

/** Takes user, name, sha256: what was sent for later use, and is here. */
export const findUnbound = statement(
  'find_unbound',
  `SELECT ${ARTIFACT} FROM ichido.artifacts
    WHERE user_id = $1 AND name = $2 AND sha256 = $3 AND state = 'ready' AND job_id IS NULL`,
)

/** Takes artifact, user, name, sha256, size, time in ms between chunks. A user has one unfinished upload of a name. */
export const openUnbound = statement(
  'open_unbound',
  `INSERT INTO ichido.artifacts (${ARTIFACT}) VALUES ($1, NULL, NULL, $2, $3, $4, $5, NULL, 'awaited', now_ms(), now_ms() + $6)
    ON CONFLICT (user_id, name) WHERE job_id IS NULL AND state = 'awaited' DO UPDATE SET
      sha256 = excluded.sha256, size_bytes = excluded.size_bytes, expires_at = excluded.expires_at
    RETURNING ${ARTIFACT}`,
)

/** Takes artifact, time in ms. */
export const renewArtifact = statement(
  'renew_artifact',
  `UPDATE ichido.artifacts SET expires_at = now_ms() + $2 WHERE id = $1 AND state = 'awaited' RETURNING id`,
)

/** Takes a maximum: uploads that were given up, and what was sent for jobs that never came. */
export const readExpired = statement(
  'read_expired',
  'SELECT id, user_id FROM ichido.artifacts WHERE expires_at <= (SELECT now_ms()) ORDER BY expires_at LIMIT $1',
)

/** Takes artifacts of users that are locked. Guards that they are still expired. */
export const deleteExpired = statement('delete_expired', {
  postgres: `DELETE FROM ichido.artifacts WHERE id IN (
      SELECT id FROM ichido.artifacts WHERE id = ANY($1::uuid[]) AND expires_at <= (SELECT now_ms())
      FOR UPDATE SKIP LOCKED) RETURNING ${ARTIFACT_FREED}`,
  sqlite: `DELETE FROM ichido.artifacts WHERE id = $1 AND expires_at <= (SELECT now_ms()) RETURNING ${ARTIFACT_FREED}`,
})

/** Takes the last blob of the page before, and how many. */
export const pageOfBlobs = statement(
  'page_of_blobs',
  'SELECT blob_id FROM ichido.blobs WHERE blob_id > $1 ORDER BY blob_id LIMIT $2',
)

/** Takes blobs; answers with those that no artifact names. Locked, they are looked at once more by `deleteUnnamed`. */
export const lockUnnamed = statement('lock_unnamed', {
  postgres: `SELECT b.blob_id FROM ichido.blobs b WHERE b.blob_id = ANY($1::uuid[])
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id) ORDER BY b.blob_id FOR UPDATE OF b`,
  sqlite: `SELECT b.blob_id FROM ichido.blobs b WHERE b.blob_id = $1
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id)`,
})

export const deleteUnnamed = statement('delete_unnamed', {
  postgres: `DELETE FROM ichido.blobs b WHERE b.blob_id = ANY($1::uuid[])
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = b.blob_id) RETURNING b.blob_id, b.sha256`,
  sqlite: `DELETE FROM ichido.blobs WHERE blob_id = $1
      AND NOT EXISTS (SELECT 1 FROM ichido.artifacts a WHERE a.blob_id = blobs.blob_id) RETURNING blob_id, sha256`,
})

/** Takes ids; answers with those of uploads that somebody may still go on with. */
export const readOpenUploads = statement('read_open_uploads', {
  postgres: `SELECT a.id FROM ichido.artifacts a WHERE a.id = ANY($1::uuid[]) AND a.state = 'awaited'
    AND (a.expires_at IS NOT NULL OR EXISTS (SELECT 1 FROM ichido.held_runs h
      JOIN ichido.runs r ON r.id = h.run_id WHERE h.job_id = a.job_id AND r.state || '' = 'PENDING'))`,
  sqlite: `SELECT a.id FROM ichido.artifacts a WHERE a.id = $1 AND a.state = 'awaited'
    AND (a.expires_at IS NOT NULL OR EXISTS (SELECT 1 FROM ichido.held_runs h
      JOIN ichido.runs r ON r.id = h.run_id WHERE h.job_id = a.job_id AND r.state || '' = 'PENDING'))`,
})

/** Takes blobs; answers with those that have a row. */
export const readBlobs = statement('read_blobs', {
  postgres: 'SELECT blob_id FROM ichido.blobs WHERE blob_id = ANY($1::uuid[])',
  sqlite: 'SELECT blob_id FROM ichido.blobs WHERE blob_id = $1',
})

/** Takes name, value, who. The first one stays. */
export const claimSetting = statement(
  'claim_setting',
  `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($1, $2, now_ms(), $3)
    ON CONFLICT (name) DO NOTHING`,
)

export const readSetting = statement('read_setting', 'SELECT value FROM ichido.settings WHERE name = $1')
