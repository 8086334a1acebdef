import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/leadership.sql.ts'

/** Where the watermark was at an instant of the store's clock. */
export interface Checkpoint {
  atMs: number
  tx: number
}

function parseCheckpoints(value: unknown): Checkpoint[] {
  if (!Array.isArray(value) || !value.every(isCheckpoint)) throw new TypeError('A stored checkpoint is malformed')
  return value
}

function isCheckpoint(value: Partial<Checkpoint> | null): value is Checkpoint {
  return typeof value?.atMs === 'number' && typeof value.tx === 'number'
}

export const readWatermark = statement('read_watermark', {
  params: {},
  row: { tx: 'integer', job_id: 'text', n: 'integer', checkpoints: { json: parseCheckpoints } },
  sql: 'SELECT tx, job_id, n, checkpoints FROM ichido.relay_watermark WHERE id = 1',
})

/** Begins at this place, unless another node has begun before. */
export const addWatermark = statement('add_watermark', {
  params: { tx: 'integer', job_id: 'text', n: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    VALUES (1, $tx, $job_id, $n, '[]')
    ON CONFLICT (id) DO NOTHING`,
})

const SET = `ON CONFLICT (id) DO UPDATE SET tx = excluded.tx, job_id = excluded.job_id, n = excluded.n,
  checkpoints = excluded.checkpoints RETURNING id`

/** Guards the leader's term. */
export const setWatermark = statement('set_watermark', {
  params: { ...TERM, tx: 'integer', job_id: 'text', n: 'integer', checkpoints: 'text' },
  row: { id: 'integer' },
  postgres: `${LED} INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $tx::bigint, $job_id::uuid, $n::bigint, $checkpoints::text FROM l ${SET}`,
  sqlite: `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $tx, $job_id, $n, $checkpoints WHERE ${LED_SQLITE} ${SET}`,
})
