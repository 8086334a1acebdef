import type { Migration } from './migration.ts'

export const leaderPlane: Migration = {
  version: 3,
  name: 'leader plane',
  statements: [
    // Definitions and schedules. A tick's job is submitted for the user who made the definition.
    "ALTER TABLE ichido.job_definitions ADD COLUMN user_id text NOT NULL DEFAULT 'local'",
    'ALTER TABLE ichido.job_definitions ADD COLUMN priority integer NOT NULL DEFAULT 0',
    'ALTER TABLE ichido.job_definitions ADD COLUMN labels text',
    "ALTER TABLE ichido.job_definitions ADD COLUMN seq_scope text NOT NULL DEFAULT 'attempt'",
    'ALTER TABLE ichido.job_definitions ADD COLUMN paused_at bigint',
    'ALTER TABLE ichido.job_definitions ADD COLUMN version integer NOT NULL DEFAULT 1',
    'ALTER TABLE ichido.job_definitions ADD COLUMN last_tick_at bigint',
    `CREATE INDEX job_definitions_due ON ichido.job_definitions (next_tick_at)
      WHERE next_tick_at IS NOT NULL AND paused_at IS NULL`,
    // The ledger. What waits, for a free slot or for the job before, is tried again.
    "ALTER TABLE ichido.occurrences ADD COLUMN origin text NOT NULL DEFAULT 'schedule'",
    'ALTER TABLE ichido.occurrences ADD COLUMN reason text',
    'ALTER TABLE ichido.occurrences ADD COLUMN run_at bigint',
    'ALTER TABLE ichido.occurrences ADD COLUMN updated_at bigint NOT NULL DEFAULT 0',
    `CREATE INDEX occurrences_waiting ON ichido.occurrences (definition_id, scheduled_for)
      WHERE outcome IN ('waiting_quota', 'waiting_overlap')`,
  ],
}
