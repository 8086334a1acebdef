import type { Ddl } from '../migration.ts'

/** Definitions, and the schedules and triggers that make their jobs. */
export const schedulesAndTriggers: readonly Ddl[] = [
  // A tick's job is submitted for the user who made the definition. `on_trigger` is the trigger rule as JSON; `topic` repeats its
  // topic for the index.
  `CREATE TABLE ichido.job_definitions (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE,
    user_id text NOT NULL DEFAULT 'local',
    kind text,
    queue text,
    payload text NOT NULL,
    policy text NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    labels text,
    domain text,
    stages text,
    seq_scope text NOT NULL DEFAULT 'attempt',
    schedule text,
    topic text,
    on_trigger text,
    version integer NOT NULL DEFAULT 1,
    paused_at bigint,
    last_tick_at bigint,
    next_tick_at bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
  )`,
  `CREATE INDEX job_definitions_due ON ichido.job_definitions (next_tick_at)
    WHERE next_tick_at IS NOT NULL AND paused_at IS NULL`,
  'CREATE INDEX job_definitions_topic ON ichido.job_definitions (topic) WHERE topic IS NOT NULL',

  // The ledger of ticks. The leader tries a tick again that waits for a free slot or for the previous job. A skip may stand for
  // all ticks up to skipped_until: an outage of one day is 86,400 ticks of a schedule that runs every second.
  `CREATE TABLE ichido.occurrences (
    definition_id uuid NOT NULL,
    scheduled_for bigint NOT NULL,
    origin text NOT NULL DEFAULT 'schedule',
    outcome text NOT NULL,
    reason text,
    job_id uuid,
    run_at bigint,
    skipped_until bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (definition_id, scheduled_for)
  )`,
  `CREATE INDEX occurrences_waiting ON ichido.occurrences (definition_id, scheduled_for)
    WHERE outcome IN ('waiting_quota', 'waiting_overlap')`,
  `CREATE INDEX occurrences_skipped ON ichido.occurrences (definition_id, scheduled_for)
    WHERE skipped_until IS NOT NULL`,

  // A backfill keeps the schedule that it began with.
  `CREATE TABLE ichido.backfills (
    id uuid PRIMARY KEY,
    definition_id uuid NOT NULL,
    actor text NOT NULL,
    from_at bigint NOT NULL,
    to_at bigint NOT NULL,
    at bigint NOT NULL,
    schedule text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    matched integer NOT NULL,
    made integer NOT NULL,
    made_before integer NOT NULL,
    skipped integer NOT NULL,
    began_at bigint NOT NULL,
    ended_at bigint
  )`,
  'CREATE INDEX backfills_definition ON ichido.backfills (definition_id, id)',
  "CREATE INDEX backfills_running ON ichido.backfills (id) WHERE state = 'running'",

  // `operates` is true if the sender may run any definition, not only its own. `settled_at` is set when the trigger is processed
  // and no job of it waits.
  `CREATE TABLE ichido.triggers (
    id uuid PRIMARY KEY,
    user_id text NOT NULL,
    operates boolean NOT NULL,
    topic text NOT NULL,
    dedupe_key text NOT NULL,
    data text NOT NULL,
    created_at bigint NOT NULL,
    processed_at bigint,
    settled_at bigint,
    UNIQUE (user_id, dedupe_key)
  )`,
  // One index (processed_at, created_at) could replace the next two, but it would hold every trigger; these hold only triggers
  // that are not done.
  'CREATE INDEX triggers_unprocessed ON ichido.triggers (created_at, id) WHERE processed_at IS NULL',
  'CREATE INDEX triggers_waiting ON ichido.triggers (id) WHERE processed_at IS NOT NULL AND settled_at IS NULL',
  'CREATE INDEX triggers_settled ON ichido.triggers (settled_at) WHERE settled_at IS NOT NULL',
  'CREATE INDEX triggers_topic ON ichido.triggers (topic, id)',
  'CREATE INDEX triggers_user ON ichido.triggers (user_id, id)',

  // The ledger of triggers. `triggered_at` is the time at which the trigger came: waiting jobs are made in that order.
  `CREATE TABLE ichido.trigger_outcomes (
    definition_id uuid NOT NULL,
    trigger_id uuid NOT NULL,
    triggered_at bigint NOT NULL,
    outcome text NOT NULL,
    job_id uuid,
    reason text,
    field text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (definition_id, trigger_id)
  )`,
  'CREATE INDEX trigger_outcomes_trigger ON ichido.trigger_outcomes (trigger_id)',
  'CREATE INDEX trigger_outcomes_job ON ichido.trigger_outcomes (job_id) WHERE job_id IS NOT NULL',
  `CREATE INDEX trigger_outcomes_waiting ON ichido.trigger_outcomes (definition_id, triggered_at, trigger_id)
    WHERE outcome IN ('waiting_quota', 'waiting_pause', 'waiting_turn')`,

  // A hook is the address of a signed webhook. Its secret is stored in clear text: a hash of it could not check a signature.
  `CREATE TABLE ichido.hooks (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE,
    scheme text NOT NULL,
    topic text NOT NULL,
    secret text NOT NULL,
    user_id text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
  )`,
]
