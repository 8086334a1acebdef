import { FIRST_ID } from '../../core/run/job.ts'
import { statement } from '../statement.ts'

export const insertCallbacks = statement('insert_callbacks', {
  params: { job_id: 'text', url: 'text' },
  row: {},
  postgres: 'INSERT INTO ichido.callbacks (job_id, url) SELECT * FROM unnest($job_id::uuid[], $url::text[])',
  sqlite: 'INSERT INTO ichido.callbacks (job_id, url) VALUES ($job_id, $url)',
})

/** Whether any job has a callback. */
export const readAnyCallback = statement('read_any_callback', {
  params: {},
  row: { job_id: 'text' },
  sql: `SELECT job_id FROM ichido.callbacks WHERE job_id > '${FIRST_ID}' ORDER BY job_id LIMIT 1`,
})

/** The callback of a job, with the owner of the job. */
export const readCallback = statement('read_callback', {
  params: { job_id: 'text' },
  row: { url: 'text', user_id: 'text' },
  sql: `SELECT c.url, j.user_id FROM ichido.callbacks c JOIN ichido.jobs j ON j.id = c.job_id WHERE c.job_id = $job_id`,
})

/** Hosts of callbacks with pending deliveries, in their order. Each next host is one step in the index. */
export const readPendingHosts = statement('read_pending_hosts', {
  params: { after: 'text', max: 'integer' },
  row: { host: 'text' },
  sql: `WITH RECURSIVE h AS (
      SELECT (SELECT d.host FROM ichido.webhook_deliveries d WHERE d.host > $after AND d.next_at IS NOT NULL
        ORDER BY d.host LIMIT 1) AS host
      UNION ALL
      SELECT (SELECT d.host FROM ichido.webhook_deliveries d WHERE d.host > h.host AND d.next_at IS NOT NULL
        ORDER BY d.host LIMIT 1) FROM h WHERE h.host IS NOT NULL)
    SELECT h.host FROM h WHERE h.host IS NOT NULL LIMIT $max`,
})

const SECRET_ROW = { secret: 'text', old_secret: 'text?', old_secret_until: 'integer?' } as const

const SECRET = 'SELECT secret, old_secret, old_secret_until FROM ichido.callback_secrets WHERE user_id = $user_id'

export const readCallbackSecret = statement('read_callback_secret', {
  params: { user_id: 'text' },
  row: SECRET_ROW,
  sql: SECRET,
})

export const lockCallbackSecret = statement('lock_callback_secret', {
  params: { user_id: 'text' },
  row: SECRET_ROW,
  postgres: `${SECRET} FOR UPDATE`,
  sqlite: SECRET,
})

/** A secret that is there already stays. */
export const addCallbackSecret = statement('add_callback_secret', {
  params: { user_id: 'text', secret: 'text' },
  row: {},
  sql: `INSERT INTO ichido.callback_secrets (user_id, secret) VALUES ($user_id, $secret) ON CONFLICT (user_id) DO NOTHING`,
})

/** The secret before stays valid for a while; one that is even older does not. */
export const rotateCallbackSecret = statement('rotate_callback_secret', {
  params: { user_id: 'text', secret: 'text', overlap_ms: 'integer' },
  row: {},
  sql: `UPDATE ichido.callback_secrets SET old_secret = secret, old_secret_until = now_ms() + $overlap_ms, secret = $secret
    WHERE user_id = $user_id`,
})
