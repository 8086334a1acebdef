import { v7 } from 'uuid'
import { beforeAll, describe, expect, test } from 'vitest'
import { HANDOUTS_MAX } from '../../core/run/job.ts'
import { RUN_STATES, type RunState, TRANSITIONS } from '../../core/run/run-state.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { integer, text } from '../../testing/store/rows.ts'
import { Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { expireBatch, reviewRuns } from '../runs/reap-runs.ts'
import type { Term } from '../system/term.ts'
import { revokeWorker } from '../workers/workers.ts'
import type { Given } from './given.ts'

const DEADLINE_MS = 7

/** What nobody decides run by run. Each finds everything as it needs it, except perhaps the state. */
const MOVES = {
  orphan: { needs: 'lease_expires_at = 1, assigned_at = 1', as: TRANSITIONS.orphan },
  exhaust: { needs: `attempt = ${HANDOUTS_MAX}`, as: TRANSITIONS.exhaust },
  expire: { needs: confirming('NULL'), as: TRANSITIONS.expire },
  endCanceled: { needs: confirming('5'), as: TRANSITIONS.endCanceled },
  revoke: { needs: 'cancel_requested_at = NULL', as: TRANSITIONS.orphan },
} as const

function confirming(cancelRequestedAt: string): string {
  return `continuation_state = 'CONFIRMING', continuation_check_deadline_at = ${DEADLINE_MS},
    cancel_requested_at = ${cancelRequestedAt}`
}

/** Every (state, move) pair of the leader and of a revocation: a run moves as the table has it, or stays. */
export function leaderConformance({ store }: Given): void {
  describe('the table of transitions and the engine agree on', () => {
    let term: Term
    beforeAll(async () => {
      term = await seize(store())
    })

    async function carryOut(move: keyof typeof MOVES, { workerId }: Scene, jobId: string, version: number) {
      if (move === 'revoke') return store().write(revokeWorker(workerId, 'ann', v7()))
      if (move === 'expire' || move === 'endCanceled') {
        const seen = { jobId, version, deadlineAtMs: DEADLINE_MS, cancelRequestedAtMs: null, continuationMs: 0 }
        return store().write(expireBatch(term, [{ ...seen, nextRunId: v7(), random: 0 }]))
      }
      const bounds = { evenMs: Number.MAX_SAFE_INTEGER, batchMax: 1_000, waitingMax: 1_000, reassignAfterMs: 10_000 }
      return store().write(reviewRuns(term, { nowMs: Date.now(), ...bounds }))
    }

    async function compare(state: RunState, move: keyof typeof MOVES): Promise<void> {
      const { needs, as } = MOVES[move]
      const scene = new Scene(store())
      const putWorker = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', 'null', 1)`
      await sql(store(), putWorker, scene.workerId)
      const { jobId, runId } = await scene.running()
      await sql(store(), `UPDATE ichido.runs SET state = $2, ${needs} WHERE id = $1`, runId, state)
      const version = integer(await scene.run(runId), 'version')
      await carryOut(move, scene, jobId, version)
      const after = await scene.run(runId)
      const isMoved = (as.from as readonly RunState[]).includes(state)
      expect([text(after, 'state'), integer(after, 'version') - version], move).toEqual(
        isMoved ? [as.to, 1] : [state, 0],
      )
    }

    test.each(RUN_STATES)('the end of a run that is %s without its worker', async (state) => {
      for (const move of Object.keys(MOVES) as (keyof typeof MOVES)[]) await compare(state, move)
    })
  })
}
