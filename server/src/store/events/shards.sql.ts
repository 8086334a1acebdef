import { statement } from '../statement.ts'

const IDLE = 'id = 1 AND (holder IS NULL OR expires_at <= now_ms())'

/**
 * Guards the value before, and that no node leads: a running node uses the value before. The lock on the row of the leadership
 * keeps nodes from taking the leadership meanwhile.
 */
export const changeIdle = statement('change_idle', {
  params: { name: 'text', value: 'text', value_before: 'text', updated_by: 'text' },
  row: { name: 'text' },
  postgres: `WITH l AS MATERIALIZED (SELECT 1 FROM ichido.leadership WHERE ${IDLE} FOR SHARE)
    UPDATE ichido.settings s SET value = $value, updated_at = now_ms(), updated_by = $updated_by FROM l
    WHERE s.name = $name AND s.value = $value_before RETURNING s.name`,
  sqlite: `UPDATE ichido.settings SET value = $value, updated_at = now_ms(), updated_by = $updated_by
    WHERE name = $name AND value = $value_before AND EXISTS (SELECT 1 FROM ichido.leadership WHERE ${IDLE}) RETURNING name`,
})
