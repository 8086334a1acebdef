import { foundation } from './0001-foundation.ts'
import { workerPlane } from './0002-worker-plane.ts'
import { leaderPlane } from './0003-leader-plane.ts'
import { eventOrder } from './0004-event-order.ts'
import { fatalErrorCodes } from './0005-fatal-error-codes.ts'
import { triggers } from './0006-triggers.ts'
import type { Migration } from './migration.ts'

export const MIGRATIONS: readonly Migration[] = [
  foundation,
  workerPlane,
  leaderPlane,
  eventOrder,
  fatalErrorCodes,
  triggers,
]
export const SCHEMA_VERSION = MIGRATIONS.at(-1)?.version ?? 0
