import pg from 'pg'
import { startNode } from '../../server/src/node/start-node.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { silentMeter } from '../../server/src/services/system/meter.ts'
import { keyOf, payload } from '../contest/contestant.ts'
import { interleave, median, time } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

/** One caller submits one job at a time, alternately through the batcher and with the same store command without it. */
export async function lone({ size, database, say }: Stage): Promise<Comparison[]> {
  const pool = new pg.Pool({ connectionString: await database('lone') })
  const onTrouble = (where: string, error: unknown) => say(`${where}: ${error}`)
  const node = await startNode({
    storage: { pool },
    world: realWorld,
    meter: silentMeter,
    allowNoFsync: false,
    onTrouble,
  })
  const { submission, deps } = node.services
  let n = 0
  const input = () => ({ kind: 'welcome', payload: payload(n) })
  const options = () => ({ key: keyOf(n++) })
  async function direct(): Promise<void> {
    await submission.submitIn((command) => deps.store.write(command), LOCAL_ADMIN, input(), options())
    // The batched submission wakes the queue, too, and the wake-up is not what this measures.
    deps.bus.wake(['queue:default'])
  }
  const batched = () => submission.submit(LOCAL_ADMIN, input(), options())
  try {
    say('a lone submit, with and without the batcher')
    const measures = { batched: () => time(batched), direct: () => time(direct) }
    await interleave({ warmUps: 0, rounds: size.calls }, measures)
    const found: { batched: number[]; direct: number[] } = { batched: [], direct: [] }
    for (let round = 0; round < size.rounds; round++) {
      const { batched, direct } = await interleave({ warmUps: 0, rounds: size.calls }, measures)
      found.batched.push(median(batched))
      found.direct.push(median(direct))
    }
    return [
      {
        what: 'lone submit, p50',
        unit: 'ms',
        ours: found.batched,
        against: 'without the batcher',
        theirs: found.direct,
        rival: 'limit',
        target: { most: 1.1 },
      },
    ]
  } finally {
    await node.close()
    await pool.end()
  }
}
