import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'
import { batch } from './batch.ts'
import { dashboard } from './dashboard.ts'
import { disk } from './disk.ts'
import { drain } from './drain.ts'
import { events } from './events.ts'
import { growth } from './growth.ts'
import { latency } from './latency.ts'
import { lone } from './lone.ts'
import { memory } from './memory.ts'
import { nodes } from './nodes.ts'
import { noisy } from './noisy.ts'
import { ready } from './ready.ts'
import { steady } from './steady.ts'
import { submit } from './submit.ts'

export type Suite = (stage: Stage) => Promise<Comparison[]>

/** In the order in which they run. The suites that fill the disk come last. */
export const SUITES: Readonly<Record<string, Suite>> = {
  submit,
  batch,
  lone,
  drain,
  latency,
  steady,
  noisy,
  nodes,
  memory,
  events,
  disk,
  ready,
  dashboard,
  growth,
}

/** `quick` runs these only if they are named. */
export const NOT_QUICK: ReadonlySet<string> = new Set(['dashboard', 'events'])
