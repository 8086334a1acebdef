import { statement } from '../statement.ts'

/** Takes reservation, user, its life in ms; the user is locked and has a free slot. */
export const insertReservation = statement('insert_reservation', {
  postgres: `INSERT INTO ichido.job_reservations (reservation_id, user_id, created_at, expires_at)
    SELECT $1::uuid, $2::text, t.now, t.now + $3::bigint FROM (SELECT now_ms() AS now) t
    ON CONFLICT DO NOTHING RETURNING created_at, expires_at`,
  sqlite: `INSERT INTO ichido.job_reservations (reservation_id, user_id, created_at, expires_at)
    SELECT $1, $2, t.now, t.now + $3 FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT DO NOTHING RETURNING created_at, expires_at`,
})

export const RESERVATION = 'reservation_id, user_id, created_at, expires_at, consumed_at, released_at, job_id'

export const readReservation = statement(
  'read_reservation',
  `SELECT ${RESERVATION}, now_ms() AS now FROM ichido.job_reservations WHERE reservation_id = $1`,
)

/** Keeps PostgreSQL on the primary key: given the bare columns it may read all that are open. */
const OPEN_V = 'coalesce(v.consumed_at, v.released_at) IS NULL'

/**
 * Takes reservation, user, job, instant; the user is locked. Guarded: active, in time, and of this user. The instant is the
 * one its transaction decided by: a reservation must not expire between the decision and the write.
 */
export const consumeReservations = statement('consume_reservations', {
  postgres: `UPDATE ichido.job_reservations v SET consumed_at = t.at, job_id = t.job_id
    FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[]) AS t(reservation_id, user_id, job_id, at)
    WHERE v.reservation_id = t.reservation_id AND v.user_id = t.user_id
      AND ${OPEN_V} AND v.expires_at > t.at
    RETURNING v.reservation_id`,
  sqlite: `UPDATE ichido.job_reservations SET consumed_at = $4, job_id = $3
    WHERE reservation_id = $1 AND user_id = $2 AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $4
    RETURNING reservation_id`,
})

/** Takes reservation, user, the instant its transaction decided by. Guarded: active; releasing twice changes nothing. */
export const releaseReservation = statement(
  'release_reservation',
  `UPDATE ichido.job_reservations SET released_at = CAST($3 AS bigint)
    WHERE reservation_id = $1 AND user_id = $2 AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $3
    RETURNING reservation_id`,
)

/**
 * Takes user, instant; the user is locked, and was counted without the reservations that had expired by then. Writes down
 * that they have, by a release at the time of their end, which nobody else's is: or they would live again when the clock is
 * set back, beside those who were let in in their place. Users are named twice: by the join alone, a plan made on an empty
 * table reads all that are open.
 */
export const expireReservations = statement('expire_reservations', {
  postgres: `WITH l AS MATERIALIZED (
      SELECT v.reservation_id FROM unnest($1::text[], $2::bigint[]) AS t(user_id, at)
      JOIN ichido.job_reservations v USING (user_id)
      WHERE v.user_id = ANY($1::text[]) AND v.consumed_at IS NULL AND v.released_at IS NULL AND v.expires_at <= t.at
      ORDER BY v.reservation_id FOR UPDATE OF v)
    UPDATE ichido.job_reservations v SET released_at = v.expires_at FROM l WHERE v.reservation_id = l.reservation_id`,
  sqlite: `UPDATE ichido.job_reservations SET released_at = expires_at
    WHERE user_id = $1 AND consumed_at IS NULL AND released_at IS NULL AND expires_at <= $2`,
})

/** Takes reservation, user, job, created_at: the row of a slot that was taken and used in one transaction. */
export const insertConsumed = statement('insert_consumed', {
  postgres: `INSERT INTO ichido.job_reservations (reservation_id, user_id, job_id, created_at, expires_at, consumed_at)
    SELECT reservation_id, user_id, job_id, at, at, at
    FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[]) AS t(reservation_id, user_id, job_id, at)`,
  sqlite: `INSERT INTO ichido.job_reservations (reservation_id, user_id, job_id, created_at, expires_at, consumed_at)
    VALUES ($1, $2, $3, $4, $4, $4)`,
})

/**
 * Takes reservation, user, instant; answers with those of the user that hold a slot then. Locks them: two submits may bring
 * one. Those of others are not locked: their users are not. `user_id || ''`: found by its id, not among all that are open.
 */
export const readLive = statement('read_live_reservations', {
  postgres: `SELECT v.reservation_id, v.user_id
    FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS t(reservation_id, user_id, at)
    JOIN ichido.job_reservations v USING (reservation_id)
    WHERE v.user_id || '' = t.user_id AND ${OPEN_V} AND v.expires_at > t.at
    ORDER BY v.reservation_id FOR UPDATE OF v`,
  sqlite: `SELECT reservation_id, user_id FROM ichido.job_reservations
    WHERE reservation_id = $1 AND user_id = $2 AND consumed_at IS NULL AND released_at IS NULL AND expires_at > $3`,
})
