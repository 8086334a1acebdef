/** The values of fields that a request leaves out. The server, its texts and the command line use these constants. */

/** The queue of a job that names none. */
export const DEFAULT_QUEUE = 'default'
/** The priority of a job that sets none. */
export const DEFAULT_PRIORITY = 0
/** How many runs of a job may start and fail, unless the job sets it. */
export const DEFAULT_MAX_ATTEMPTS = 4
/** How long a worker may be silent, unless the job or its queue sets it. */
export const DEFAULT_LEASE_TTL_SECONDS = 60
/** How much longer a run is reserved for a silent worker, unless the job or its queue sets it. */
export const DEFAULT_CONTINUATION_SECONDS = 60
/** The backoff of a job that sets none. S1 §6 asks for it. */
export const DEFAULT_BACKOFF = { baseSeconds: 10, capSeconds: 300, jitter: 0.1 } as const
/** How long an idempotency key lives, unless the submission sets it. */
export const DEFAULT_KEY_TTL_HOURS = 24
/**
 * The same for a submission of an outbox. Longer than a holiday offline: while the server knows the key, a repeated submission
 * is the same job.
 */
export const DEFAULT_OUTBOX_KEY_TTL_HOURS = 30 * 24
/** How long the next part of an upload may take, unless the submission sets it. */
export const DEFAULT_UPLOAD_TTL_SECONDS = 300
/** How long a reservation holds its slot, unless the request sets it. */
export const DEFAULT_RESERVATION_TTL_SECONDS = 300
/** How long an enroll token can register a worker, unless the request sets it. */
export const DEFAULT_ENROLL_TTL_SECONDS = 3600
/** Ticks that were missed longer ago are not made, unless the schedule sets another window. */
export const DEFAULT_CATCH_UP_WINDOW_SECONDS = 86_400
/** The size of a page of a list. */
export const DEFAULT_LIST_LIMIT = 50
/** How many future ticks of a schedule are shown. */
export const DEFAULT_TICKS_LIMIT = 10
