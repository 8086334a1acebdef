import { claimSetting, readSetting } from '../access/access.sql.ts'
import { freeBytes, lockOwners } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { giveBack } from '../runs/costs.ts'
import { recordMoves } from '../runs/lifecycle.ts'
import { each, one, query, type Work } from '../statement.ts'
import * as sql from './artifacts.sql.ts'

/** Why a job whose upload did not go on was canceled. */
export const UPLOAD_OVERDUE = JSON.stringify({
  code: 'UPLOAD_OVERDUE',
  message: 'The artifacts of the job did not arrive in time',
})

export interface Overdue {
  /** How many were looked at: as many as allowed means that there may be more. */
  seen: number
  canceledJobIds: string[]
}

/** Cancels jobs whose uploads have stopped. Any node may do it, also several at once; an upload that goes on wins. */
export function cancelOverdue(max: number): Command<Overdue> {
  return command('cancel_overdue', function* work(): Work<Overdue> {
    const overdue = (yield* query(sql.lockOverdue, { max })).map((row) => row.run_id).sort()
    const canceled = yield* each(
      sql.cancelHeldRuns,
      overdue.map((run_id) => ({ run_id, error: UPLOAD_OVERDUE })),
    )
    yield* each(
      sql.deleteHeldRuns,
      overdue.map((run_id) => ({ run_id })),
    )
    yield* recordMoves(canceled)
    yield* giveBack(canceled.map((row) => row.id))
    return { seen: overdue.length, canceledJobIds: canceled.map((row) => row.job_id) }
  })
}

/** Forgets uploads that were given up, and what was sent for jobs that never came; answers with how many. */
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

export interface UnnamedBlobs {
  removed: { blobId: string; sha256: string }[]
  /** Where the next page begins; null at the end. */
  next: string | null
}

/**
 * Looks through one page of blobs, and forgets those that no artifact names. They are locked first and looked at again in
 * a statement of its own: whoever names one meanwhile holds its row.
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

/** Which of these uploads somebody may still go on with. */
export function findAwaited(artifactIds: readonly string[]): Command<Set<string>> {
  return command('find_awaited', function* work(): Work<Set<string>> {
    const rows = yield* each(
      sql.readOpenUploads,
      artifactIds.map((artifact_id) => ({ artifact_id })),
    )
    return new Set(rows.map((row) => row.id))
  })
}

/** Which of these blobs have a row. */
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

/** Which folder holds this store's artifacts; `proposed` from now on, when there was none. Null: there is none. */
export function artifactsFolder(proposed: string | null): Command<string | null> {
  return command('artifacts_folder', function* work(): Work<string | null> {
    if (proposed !== null) {
      yield* query(claimSetting, { name: FOLDER, value: JSON.stringify(proposed), updated_by: 'ichido' })
    }
    const setting = yield* one(readSetting, { name: FOLDER })
    return setting === undefined ? null : String(setting.value)
  })
}

/** Is anything kept at all? */
export function hasBlobs(): Command<boolean> {
  return command('has_blobs', function* work(): Work<boolean> {
    return (yield* query(sql.pageOfBlobs, { after: '00000000-0000-0000-0000-000000000000', max: 1 })).length > 0
  })
}
