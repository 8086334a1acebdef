import { defineKind, Fatal } from '@ichido/sdk'
import { sleep, type World } from '@ichido/sdk/world'
import type { Ichido } from '../../../library/api.ts'
import { embed } from '../../../library/embed.ts'
import type { ControlNode } from '../../../node/start-node.ts'
import { DEMO_FAILING_KIND, DEMO_KIND, DEMO_QUEUE } from '../jobs/demo.ts'

const STEPS = 5
const STEP_MS = 200
const CONCURRENCY = 4

/** A worker inside the server, for the first steps. */
export function startDemoWorker(
  node: ControlNode,
  world: World,
  onTrouble: (where: string, error: unknown) => void,
): Pick<Ichido, 'close'> {
  // The server closes the node itself, after its last request.
  const worker = embed({ ...node, close: async () => {} }, world, onTrouble)
  const options = { concurrency: CONCURRENCY }
  worker.handle(
    defineKind(DEMO_KIND, { queue: DEMO_QUEUE }),
    async ({ payload, signal, progress }) => {
      for (let step = 1; step <= STEPS; step++) {
        await progress({ percent: (step * 100) / STEPS, message: `counting: ${step} of ${STEPS}` })
        await sleep(world, STEP_MS, signal)
        signal.throwIfAborted()
      }
      return { greeting: `Hello, ${nameIn(payload)}!`, counted_to: STEPS }
    },
    options,
  )
  worker.handle(
    defineKind(DEMO_FAILING_KIND, { queue: DEMO_QUEUE }),
    () => {
      throw new Fatal('DEMO', 'Jobs of this kind always fail')
    },
    options,
  )
  return worker
}

function nameIn(payload: unknown): string {
  return typeof payload === 'object' && payload !== null && 'name' in payload ? String(payload.name) : 'world'
}
