import { type Command, command } from '../port.ts'
import { exactlyOne, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { claimSetting, readSetting } from '../system/settings.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { type EventPlace, findLastPlace } from './all-events.ts'
import { ALL_EVENTS } from './event-sources.sql.ts'

/** The watermark at an instant of the store's clock. */
interface Checkpoint {
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

const readWatermark = statement('read_watermark', {
  params: {},
  row: { tx: 'integer', job_id: 'text', n: 'integer', checkpoints: { json: parseCheckpoints } },
  sql: 'SELECT tx, job_id, n, checkpoints FROM ichido.relay_watermark WHERE id = 1',
})

/** Starts at this place, unless another node has started before. */
const addWatermark = statement('add_watermark', {
  params: { tx: 'integer', job_id: 'text', n: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    VALUES (1, $tx, $job_id, $n, '[]')
    ON CONFLICT (id) DO NOTHING`,
})

const SET = `ON CONFLICT (id) DO UPDATE SET tx = excluded.tx, job_id = excluded.job_id, n = excluded.n,
  checkpoints = excluded.checkpoints RETURNING id`

/** Guards the leader's term. */
const setWatermark = statement('set_watermark', {
  params: { ...TERM, tx: 'integer', job_id: 'text', n: 'integer', checkpoints: 'text' },
  row: { id: 'integer' },
  postgres: `${LED} INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $tx::bigint, $job_id::uuid, $n::bigint, $checkpoints::text FROM l ${SET}`,
  sqlite: `INSERT INTO ichido.relay_watermark (id, tx, job_id, n, checkpoints)
    SELECT 1, $tx, $job_id, $n, $checkpoints WHERE ${LED_SQLITE} ${SET}`,
})

export interface Watermark {
  place: EventPlace
  /** Oldest first. */
  checkpoints: readonly Checkpoint[]
}

/** The relay starts with new events, not with all events of the past. */
export function beginWatermark(): Command<Watermark> {
  return command('begin_watermark', function* work(again): Work<Watermark> {
    const found = yield* one(readWatermark, {})
    if (found !== undefined) return toWatermark(found)
    const { tx, jobId, n } = yield* findLastPlace().work(again)
    yield* query(addWatermark, { tx, job_id: jobId, n })
    return toWatermark(yield* exactlyOne(readWatermark, {}))
  })
}

function toWatermark({ tx, job_id, n, checkpoints }: RowOf<typeof readWatermark>): Watermark {
  return { place: { tx, jobId: job_id, n }, checkpoints }
}

/** Returns false if the term is over. */
export function moveWatermark({ epoch, holder }: Term, { place, checkpoints }: Watermark): Command<boolean> {
  return command('move_watermark', function* work(): Work<boolean> {
    const { tx, jobId, n } = place
    const mark = { tx, job_id: jobId, n, checkpoints: JSON.stringify(checkpoints) }
    return (yield* one(setWatermark, { epoch, holder, ...mark })) !== undefined
  })
}

const IDLE = 'id = 1 AND (holder IS NULL OR expires_at <= now_ms())'

/**
 * Guards the previous value, and that no node leads, because a running node uses the previous value. The lock on the
 * leadership's row keeps nodes from taking the leadership meanwhile.
 */
const changeIdle = statement('change_idle', {
  params: { name: 'text', value: 'text', value_before: 'text', updated_by: 'text' },
  row: { name: 'text' },
  postgres: `WITH l AS MATERIALIZED (SELECT 1 FROM ichido.leadership WHERE ${IDLE} FOR SHARE)
    UPDATE ichido.settings s SET value = $value, updated_at = now_ms(), updated_by = $updated_by FROM l
    WHERE s.name = $name AND s.value = $value_before RETURNING s.name`,
  sqlite: `UPDATE ichido.settings SET value = $value, updated_at = now_ms(), updated_by = $updated_by
    WHERE name = $name AND value = $value_before AND EXISTS (SELECT 1 FROM ichido.leadership WHERE ${IDLE}) RETURNING name`,
})

const SHARDS = 'redis_shards'
const OWNER = 'redis_owner'
const BY = 'ichido'

/** Returns the number of shards for all nodes: the first node sets it. */
export function claimShards(wanted: number): Command<number> {
  return command('claim_shards', function* work(): Work<number> {
    return Number(yield* claim(SHARDS, wanted))
  })
}

/** Returns the name by which all nodes of this store mark a Redis: the first node sets it. */
export function claimRedisOwner(wanted: string): Command<string> {
  return command('claim_redis_owner', function* work(): Work<string> {
    return String(yield* claim(OWNER, wanted))
  })
}

function* claim(name: string, wanted: unknown): Work<unknown> {
  yield* query(claimSetting, { name, value: JSON.stringify(wanted), updated_by: BY })
  return (yield* exactlyOne(readSetting, { name })).value
}

/** Returns false if a node leads, or the value has changed meanwhile. */
export function changeShards(from: number, to: number): Command<boolean> {
  return command('change_shards', function* work(again): Work<boolean> {
    const changed = yield* query(changeIdle, {
      name: SHARDS,
      value: JSON.stringify(to),
      value_before: JSON.stringify(from),
      updated_by: BY,
    })
    if (changed.length > 0) return true
    return again && Number((yield* exactlyOne(readSetting, { name: SHARDS })).value) === to
  })
}

const AHEAD = (column: string) => `(r.${column} >= l.ahead AND r.${column} <= l.last)`

/**
 * Events with a later transaction than any of this server came in a dump of another server. They get the current
 * transaction, and the relay and the webhooks start again. No event of this server is touched: its `tx` is below the end of the
 * snapshot. They are taken in the order of their transactions, so that the events of a job stay in order. `found` also counts events that another node updates at the same time, because that node may not be done
 * either.
 */
const redateEvents = statement('redate_events', {
  params: { max: 'integer' },
  row: { found: 'integer' },
  postgres: `WITH s AS MATERIALIZED (
      SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS ahead, pg_current_xact_id()::text::bigint AS tx),
    a AS MATERIALIZED (
      SELECT tx FROM ${ALL_EVENTS.postgres} e WHERE tx >= (SELECT ahead FROM s) ORDER BY tx LIMIT $max),
    l AS MATERIALIZED (SELECT s.tx, s.ahead, (SELECT max(tx) FROM a) AS last FROM s),
    e AS (UPDATE ichido.events r SET tx = l.tx FROM l WHERE ${AHEAD('tx')}),
    h AS (UPDATE ichido.held r SET leased_tx = l.tx FROM l WHERE ${AHEAD('leased_tx')}),
    d AS (UPDATE ichido.ended r SET leased_tx = CASE WHEN ${AHEAD('leased_tx')} THEN l.tx ELSE r.leased_tx END,
        ended_tx = CASE WHEN ${AHEAD('ended_tx')} THEN l.tx ELSE r.ended_tx END
      FROM l WHERE ${AHEAD('leased_tx')} OR ${AHEAD('ended_tx')}),
    w AS (DELETE FROM ichido.relay_watermark WHERE EXISTS (SELECT 1 FROM a)),
    p AS (DELETE FROM ichido.webhook_places WHERE EXISTS (SELECT 1 FROM a))
    SELECT count(*) AS found FROM a`,
  sqlite: [],
})

/** Events of one transaction: each row is written again. */
const BATCH_MAX = 10_000

/**
 * A dump that is restored into a younger PostgreSQL contains transactions of the future. Until then its events would be
 * missing from the list of all events, and later they would appear among newer ones. Returns true while there may be
 * more of them.
 */
export function adoptRestoredEvents(batchMax: number = BATCH_MAX): Command<boolean> {
  return command('adopt_restored_events', function* work(): Work<boolean> {
    return (yield* exactlyOne(redateEvents, { max: batchMax })).found === batchMax
  })
}
