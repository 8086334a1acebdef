import { FIRST_ID } from '../../core/run/job.ts'
import { freeBytes, lockOwners } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { giveBack } from '../runs/costs.ts'
import { endReady } from '../runs/leader.sql.ts'
import { each, one, query, type Work } from '../statement.ts'
import { claimSetting, readSetting } from '../system/settings.ts'
import * as sql from './artifacts.sql.ts'

/** The error of a job that was canceled because its upload stopped. */
const UPLOAD_OVERDUE = JSON.stringify({
  code: 'UPLOAD_OVERDUE',
  message: 'The artifacts of the job did not arrive in time',
})

interface Overdue {
  /** How many were checked; if it is the maximum, there may be more. */
  seen: number
  canceledJobIds: string[]
  /** The queue and the kind of each canceled job. */
  ended: { queue: string; kind: string }[]
}

/**
 * Cancels jobs whose uploads have stopped. Any node may do it, and several at once do no harm. An upload that continues
 * wins.
 */
export function cancelOverdue(max: number): Command<Overdue> {
  return command('cancel_overdue', function* work(): Work<Overdue> {
    const overdue = yield* query(sql.lockOverdue, { max })
    // A job that no longer waits was canceled, or its uploads are complete.
    const waiting = yield* each(sql.lockAwaitingRuns, overdue)
    const canceled = yield* each(
      endReady,
      waiting.map(({ job_id }) => ({ job_id, state: 'CANCELED' as const, error: UPLOAD_OVERDUE })),
    )
    yield* each(sql.deleteUploadWaits, overdue)
    const canceledJobIds = canceled.map((row) => row.job_id)
    yield* giveBack(canceledJobIds)
    return { seen: overdue.length, canceledJobIds, ended: canceled }
  })
}

/** Deletes abandoned uploads and artifacts that no job used; returns how many. */
export function deleteExpiredArtifacts(max: number): Command<number> {
  return command('delete_expired_artifacts', function* work(): Work<number> {
    const ours = yield* lockOwners(yield* query(sql.readExpired, { max }))
    const removed = yield* each(
      sql.deleteExpired,
      ours.map((artifact_id) => ({ artifact_id })),
    )
    yield* freeBytes(removed)
    return removed.length
  })
}

interface UnnamedBlobs {
  removed: { blobId: string; sha256: string }[]
  /** The start of the next page; null at the end. */
  next: string | null
}

/**
 * Deletes the blobs of one page that no artifact names. They are locked first and then checked again in another
 * statement: a transaction that names a blob holds its row.
 */
export function forgetUnnamedBlobs(after: string, max: number): Command<UnnamedBlobs> {
  return command('forget_unnamed_blobs', function* work(): Work<UnnamedBlobs> {
    const page = yield* query(sql.pageOfBlobs, { after, max })
    const unnamed = yield* each(sql.lockUnnamed, page)
    const removed = yield* each(sql.deleteUnnamed, unnamed)
    return {
      removed: removed.map((row) => ({ blobId: row.blob_id, sha256: row.sha256 })),
      next: page.length < max ? null : (page.at(-1)?.blob_id ?? null),
    }
  })
}

/** Finds those of the uploads that may still continue. */
export function findAwaited(artifactIds: readonly string[]): Command<Set<string>> {
  return command('find_awaited', function* work(): Work<Set<string>> {
    const rows = yield* each(
      sql.readOpenUploads,
      artifactIds.map((artifact_id) => ({ artifact_id })),
    )
    return new Set(rows.map((row) => row.id))
  })
}

/** Finds those of the blobs that have a row. */
export function findBlobs(blobIds: readonly string[]): Command<Set<string>> {
  return command('find_blobs', function* work(): Work<Set<string>> {
    const rows = yield* each(
      sql.readBlobs,
      blobIds.map((blob_id) => ({ blob_id })),
    )
    return new Set(rows.map((row) => row.blob_id))
  })
}

const FOLDER = 'artifacts_folder'

/**
 * The id of the folder with this store's artifacts; `proposed` becomes the id if there was none. Null: there is none.
 */
export function artifactsFolder(proposed: string | null): Command<string | null> {
  return command('artifacts_folder', function* work(): Work<string | null> {
    if (proposed !== null) {
      yield* query(claimSetting, { name: FOLDER, value: JSON.stringify(proposed), updated_by: 'ichido' })
    }
    const setting = yield* one(readSetting, { name: FOLDER })
    return setting === undefined ? null : String(setting.value)
  })
}

/** True if there is any blob. */
export function hasBlobs(): Command<boolean> {
  return command('has_blobs', function* work(): Work<boolean> {
    return (yield* query(sql.pageOfBlobs, { after: FIRST_ID, max: 1 })).length > 0
  })
}
