import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'

export const readWatermark = statement(
  'read_watermark',
  'SELECT tx, job_id, n, checkpoints FROM ichido.relay_watermark WHERE id = 1',
)

/** Takes transaction, job and number: where to begin, unless somebody has begun. */
export const addWatermark = statement(
  'add_watermark',
  `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints) VALUES (1, $1, $2, $3, '[]')
    ON CONFLICT (id) DO NOTHING`,
)

const SET = `ON CONFLICT (id) DO UPDATE SET tx = excluded.tx, job_id = excluded.job_id, n = excluded.n,
  checkpoints = excluded.checkpoints RETURNING id`

/** Takes a term, transaction, job, number and checkpoints. */
export const setWatermark = statement('set_watermark', {
  postgres: `${LED} INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $3::bigint, $4::uuid, $5::bigint, $6::text FROM l ${SET}`,
  sqlite: `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $3, $4, $5, $6 WHERE ${LED_SQLITE} ${SET}`,
})
