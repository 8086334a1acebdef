import { statement } from '../statement.ts'

const IDLE = 'id = 1 AND (holder IS NULL OR expires_at <= now_ms())'

/**
 * Takes a name, a value, the value before and who. Guards that value, and that nobody leads: a node that runs has the value before. The
 * row of leadership is locked, so that nobody begins to lead meanwhile.
 */
export const changeIdle = statement('change_idle', {
  postgres: `WITH l AS MATERIALIZED (SELECT 1 FROM ichido.leadership WHERE ${IDLE} FOR SHARE)
    UPDATE ichido.settings s SET value = $2, updated_at = now_ms(), updated_by = $4 FROM l
    WHERE s.name = $1 AND s.value = $3 RETURNING s.name`,
  sqlite: `UPDATE ichido.settings SET value = $2, updated_at = now_ms(), updated_by = $4
    WHERE name = $1 AND value = $3 AND EXISTS (SELECT 1 FROM ichido.leadership WHERE ${IDLE}) RETURNING name`,
})
