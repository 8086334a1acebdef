import { describe, expect, test } from 'vitest'
import { type Decision, decide, isFinal, RUN_STATES, type RunCommand, type RunState } from '../../core/run/run-state.ts'
import { integer, text } from '../../testing/store/rows.ts'
import { failed, finished, only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import type { Leased } from '../leasing/lease-runs.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import { toFacts } from '../runs/run-facts.ts'
import { FACTS_ROW } from '../runs/runs.sql.ts'
import { type Row, readRows } from '../statement.ts'
import type { Given } from './given.ts'

/** `adopt` looks at two runs: late-reports.ts has it. */
type Command = Exclude<RunCommand, { verb: 'adopt' }>
type Verb = Command['verb']

/** What of a command is wrong; each is tried on every state, with everything else right. */
const WRONG = ['nothing', 'worker', 'lease', 'version', 'epoch', 'start id', 'content'] as const
type Wrong = (typeof WRONG)[number]

const APPLIES: Record<Verb, readonly Wrong[]> = {
  lease: ['nothing'],
  start: ['nothing', 'worker', 'lease', 'version', 'start id'],
  heartbeat: ['nothing', 'worker', 'lease'],
  release: ['nothing', 'worker', 'lease'],
  finish: ['nothing', 'worker', 'lease', 'version', 'epoch', 'content'],
  fail: ['nothing', 'worker', 'lease', 'version', 'epoch', 'content'],
  cancel: ['nothing'],
}

const cases = RUN_STATES.flatMap((state) =>
  (Object.keys(APPLIES) as Verb[]).map((verb): [RunState, Verb] => [state, verb]),
)

/** Only on a RUNNING run can a wish to cancel be noted; it stays there when the run ends. */
const wishes = (state: RunState) => (state === 'RUNNING' || isFinal(state) ? [false, true] : [false])

/** What a command that is accepted without a transition writes all the same. */
const NOTED: Partial<Record<Verb, string[]>> = { cancel: ['cancel_requested_at'], heartbeat: ['lease_expires_at'] }

/** Every (state, command) pair, with the right and with each wrong guard: decide() and the SQL say and do the same. */
export function decideConformance({ store }: Given): void {
  describe('decide() and the engine agree on', () => {
    test.each(cases)('a run that is %s and the command %s', async (state, verb) => {
      for (const wrong of APPLIES[verb]) {
        for (const cancelRequested of wishes(state)) await compare(state, verb, wrong, cancelRequested)
      }
    })
  })

  async function compare(state: RunState, verb: Verb, wrong: Wrong, cancelRequested: boolean): Promise<void> {
    const scene = new Scene(store())
    const lease = await bringTo(scene, state, verb)
    if (cancelRequested) await sql(store(), 'UPDATE ichido.runs SET cancel_requested_at = 5 WHERE id = $1', lease.runId)
    const before = await scene.run(lease.runId)
    const command = commandOf(scene, lease, before, verb, wrong)
    const decision = decide(toFacts(only(readRows({ row: FACTS_ROW }, [{ ...before }]))), command, Date.now())
    const which = `wrong: ${wrong}, cancel requested: ${cancelRequested}`

    expect(await carryOut(scene, lease, command), which).toEqual(asAnswer(decision, verb))

    const after = await scene.run(lease.runId)
    if (decision.kind === 'move') {
      expect(text(after, 'state'), which).toBe(decision.to)
      expect(integer(after, 'version'), which).toBe(integer(before, 'version') + 1)
    } else {
      const noted = decision.kind === 'note' ? (NOTED[verb] ?? []) : []
      expect(without(after, noted), which).toEqual(without(before, noted))
    }
  }

  /** By real commands where there are any; a run without a holder is given one, or decide() would never get that far. */
  async function bringTo(scene: Scene, state: RunState, verb: Verb): Promise<Leased> {
    await scene.submitted()
    const lease = await scene.leased()
    if (state === 'PENDING' || state === 'ORPHANED' || state === 'TIMED_OUT') {
      if (state === 'TIMED_OUT') await scene.start(lease)
      const finished = isFinal(state) ? ', finished_at = 1' : ''
      await sql(store(), `UPDATE ichido.runs SET state = $2${finished} WHERE id = $1`, lease.runId, state)
    } else if (state === 'CANCELED') await scene.cancel(lease.jobId)
    else if (state !== 'ASSIGNED') {
      await scene.start(lease)
      if (state === 'SUCCEEDED')
        await store().write(finishBatch([scene.endItem(lease, finished(), { outcomeHash: 'right' })]))
      if (state === 'FAILED')
        await store().write(finishBatch([scene.endItem(lease, failed(), { outcomeHash: 'right' })]))
    }
    // A cancel acts on the job's latest run; without this it would meet the retry of the failed one.
    if (state === 'FAILED' && verb === 'cancel') {
      await sql(store(), 'DELETE FROM ichido.ready WHERE job_id = $1', lease.jobId)
      await sql(store(), 'UPDATE ichido.runs SET latest = true WHERE id = $1', lease.runId)
    }
    return lease
  }
}

function commandOf(scene: Scene, lease: Leased, before: Row, verb: Verb, wrong: Wrong): Command {
  const holder = {
    workerId: wrong === 'worker' ? 'another' : scene.workerId,
    leaseId: wrong === 'lease' ? `${lease.jobId}.another` : lease.leaseId,
  }
  const version = integer(before, 'version') - (wrong === 'version' ? 1 : 0)
  switch (verb) {
    case 'lease':
    case 'cancel':
      return { verb }
    case 'heartbeat':
    case 'release':
      return { verb, ...holder }
    case 'start':
      return { verb, ...holder, version, startId: wrong === 'start id' ? 'another' : 'start' }
    case 'finish':
    case 'fail': {
      const leaderEpoch = wrong === 'epoch' ? 99 : 1
      return { verb, ...holder, version, leaderEpoch, outcomeHash: wrong === 'content' ? 'another' : 'right' }
    }
  }
}

/** What the engine says, in decide()'s words. */
async function carryOut(scene: Scene, lease: Leased, command: Command): Promise<Decision['kind'] | string> {
  switch (command.verb) {
    case 'lease': {
      const leases = await scene.lease({ workerId: 'next' })
      return leases.some(({ runId }) => runId === lease.runId) ? 'move' : 'refuse'
    }
    case 'cancel': {
      const outcome = await scene.cancel(lease.jobId)
      if (outcome.kind === 'refused') return outcome.reason
      return { canceled: 'move', requested: 'note', repeated: 'repeat' }[outcome.kind]
    }
    case 'heartbeat': {
      const outcome = await scene.heartbeat(lease, command)
      return outcome.kind === 'refused' ? outcome.reason : 'note'
    }
    case 'release': {
      const outcome = await scene.release(lease, command)
      return outcome.kind === 'refused' ? outcome.reason : { released: 'move', repeated: 'repeat' }[outcome.kind]
    }
    case 'start': {
      const outcome = await scene.start(lease, { version: null, ...command })
      return outcome.kind === 'refused' ? outcome.reason : { started: 'move', repeated: 'repeat' }[outcome.kind]
    }
    default: {
      const { verb, ...guards } = command
      const report = verb === 'finish' ? finished() : failed()
      const outcome = only(await scene.store.write(finishBatch([scene.endItem(lease, report, guards)])))
      return outcome.kind === 'refused' ? outcome.reason : { recorded: 'move', repeated: 'repeat' }[outcome.kind]
    }
  }
}

/** A lease names no run, so it hears no reason; it just goes away empty-handed. */
function asAnswer(decision: Decision, verb: Verb): string {
  return decision.kind === 'refuse' && verb !== 'lease' ? decision.reason : decision.kind
}

function without(row: Row, columns: readonly string[]): Row {
  return Object.fromEntries(Object.entries(row).filter(([column]) => !columns.includes(column)))
}
