import { statement } from '../statement.ts'

/** The user is locked and has a free slot. */
export const insertReservation = statement('insert_reservation', {
  params: { reservation_id: 'text', user_id: 'text', ttl_ms: 'integer' },
  row: { created_at: 'integer', expires_at: 'integer' },
  postgres: `INSERT INTO ichido.job_reservations (reservation_id, user_id, created_at, expires_at)
    SELECT $reservation_id::uuid, $user_id::text, t.now, t.now + $ttl_ms::bigint FROM (SELECT now_ms() AS now) t
    ON CONFLICT DO NOTHING RETURNING created_at, expires_at`,
  sqlite: `INSERT INTO ichido.job_reservations (reservation_id, user_id, created_at, expires_at)
    SELECT $reservation_id, $user_id, t.now, t.now + $ttl_ms FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT DO NOTHING RETURNING created_at, expires_at`,
})

export const RESERVATION = 'reservation_id, user_id, created_at, expires_at, consumed_at, released_at, job_id'
/** `now` is the store's clock. */
export const RESERVATION_ROW = {
  reservation_id: 'text',
  user_id: 'text',
  created_at: 'integer',
  expires_at: 'integer',
  consumed_at: 'integer?',
  released_at: 'integer?',
  job_id: 'text?',
  now: 'integer',
} as const

export const readReservation = statement('read_reservation', {
  params: { reservation_id: 'text' },
  row: RESERVATION_ROW,
  sql: `SELECT ${RESERVATION}, now_ms() AS now FROM ichido.job_reservations WHERE reservation_id = $reservation_id`,
})

/** Keeps PostgreSQL on the primary key: for the bare columns it may read all open reservations. */
const OPEN_V = 'coalesce(v.consumed_at, v.released_at) IS NULL'

/**
 * The user is locked. It guards that the reservation is active, not expired, and of this user. The instant is that of the
 * transaction's decision: a reservation must not expire between the decision and the write.
 */
export const consumeReservations = statement('consume_reservations', {
  params: { reservation_id: 'text', user_id: 'text', job_id: 'text', at: 'integer' },
  row: { reservation_id: 'text' },
  postgres: `UPDATE ichido.job_reservations v SET consumed_at = t.at, job_id = t.job_id
    FROM unnest($reservation_id::uuid[], $user_id::text[], $job_id::uuid[], $at::bigint[]) AS t(reservation_id, user_id, job_id, at)
    WHERE v.reservation_id = t.reservation_id AND v.user_id = t.user_id
      AND ${OPEN_V} AND v.expires_at > t.at
    RETURNING v.reservation_id`,
  sqlite: `UPDATE ichido.job_reservations SET consumed_at = $at, job_id = $job_id
    WHERE reservation_id = $reservation_id AND user_id = $user_id AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $at
    RETURNING reservation_id`,
})

/** At the instant of the transaction's decision. It guards that the reservation is active: a second release changes nothing. */
export const releaseReservation = statement('release_reservation', {
  params: { reservation_id: 'text', user_id: 'text', at: 'integer' },
  row: { reservation_id: 'text' },
  sql: `UPDATE ichido.job_reservations SET released_at = CAST($at AS bigint)
    WHERE reservation_id = $reservation_id AND user_id = $user_id AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $at
    RETURNING reservation_id`,
})

/**
 * The user is locked, and was counted without the reservations that had expired by this instant. It records the expiry as a
 * release at the expiry time, which no other release has. Otherwise the reservations would be active again when the clock is
 * set back, beside the jobs that were admitted in their place. Users are named twice: by the join alone, a plan that was made
 * on an empty table reads all open reservations.
 */
export const expireReservations = statement('expire_reservations', {
  params: { user_id: 'text', at: 'integer' },
  row: {},
  postgres: `WITH l AS MATERIALIZED (
      SELECT v.reservation_id FROM unnest($user_id::text[], $at::bigint[]) AS t(user_id, at)
      JOIN ichido.job_reservations v USING (user_id)
      WHERE v.user_id = ANY($user_id::text[]) AND v.consumed_at IS NULL AND v.released_at IS NULL AND v.expires_at <= t.at
      ORDER BY v.reservation_id FOR UPDATE OF v)
    UPDATE ichido.job_reservations v SET released_at = v.expires_at FROM l WHERE v.reservation_id = l.reservation_id`,
  sqlite: `UPDATE ichido.job_reservations SET released_at = expires_at
    WHERE user_id = $user_id AND consumed_at IS NULL AND released_at IS NULL AND expires_at <= $at`,
})

/** A slot that was taken and used in one transaction. */
export const insertConsumed = statement('insert_consumed', {
  params: { reservation_id: 'text', user_id: 'text', job_id: 'text', created_at: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.job_reservations (reservation_id, user_id, job_id, created_at, expires_at, consumed_at)
    SELECT reservation_id, user_id, job_id, at, at, at
    FROM unnest($reservation_id::uuid[], $user_id::text[], $job_id::uuid[], $created_at::bigint[]) AS t(reservation_id, user_id, job_id, at)`,
  sqlite: `INSERT INTO ichido.job_reservations (reservation_id, user_id, job_id, created_at, expires_at, consumed_at)
    VALUES ($reservation_id, $user_id, $job_id, $created_at, $created_at, $created_at)`,
})

/**
 * The user's reservations that hold a slot at this instant. It locks them, because two submits may use one reservation. It does
 * not lock those of other users. `user_id || ''` leads to the primary key instead of all open reservations.
 */
export const readLive = statement('read_live_reservations', {
  params: { reservation_id: 'text', user_id: 'text', at: 'integer' },
  row: { reservation_id: 'text', user_id: 'text' },
  postgres: `SELECT v.reservation_id, v.user_id
    FROM unnest($reservation_id::uuid[], $user_id::text[], $at::bigint[]) AS t(reservation_id, user_id, at)
    JOIN ichido.job_reservations v USING (reservation_id)
    WHERE v.user_id || '' = t.user_id AND ${OPEN_V} AND v.expires_at > t.at
    ORDER BY v.reservation_id FOR UPDATE OF v`,
  sqlite: `SELECT reservation_id, user_id FROM ichido.job_reservations
    WHERE reservation_id = $reservation_id AND user_id = $user_id AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $at`,
})
