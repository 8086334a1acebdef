import { foundation } from './0001-foundation.ts'
import { workerPlane } from './0002-worker-plane.ts'
import { leaderPlane } from './0003-leader-plane.ts'
import { eventOrder } from './0004-event-order.ts'
import { triggersAndAlerts } from './0005-triggers-and-alerts.ts'
import { hardening } from './0006-hardening.ts'
import type { Migration } from './migration.ts'

export const MIGRATIONS: readonly Migration[] = [
  foundation,
  workerPlane,
  leaderPlane,
  eventOrder,
  triggersAndAlerts,
  hardening,
]
export const SCHEMA_VERSION = MIGRATIONS.at(-1)?.version ?? 0
