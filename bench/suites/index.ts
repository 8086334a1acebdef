import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'
import { batch } from './batch.ts'
import { drain } from './drain.ts'
import { events } from './events.ts'
import { floor } from './floor.ts'
import { growth } from './growth.ts'
import { idle } from './idle.ts'
import { lone } from './lone.ts'
import { start } from './start.ts'
import { submit } from './submit.ts'

export type Suite = (stage: Stage) => Promise<Comparison[]>

/** In the order in which they run. The suites that fill the disk come last. */
export const SUITES: Readonly<Record<string, Suite>> = {
  submit,
  batch,
  floor,
  lone,
  drain,
  start,
  idle,
  events,
  growth,
}

/** `quick` runs these only if they are named. */
export const NOT_QUICK: ReadonlySet<string> = new Set(['events'])
