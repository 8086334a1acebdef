import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  ACTIVE_STATES,
  type Decision,
  decide,
  FINAL_STATES,
  isFinal,
  RELEASED_OUTCOME,
  RUN_STATES,
  type RunCommand,
  type RunFacts,
  type RunState,
  TRANSITIONS,
} from './run-state.ts'

const moves = Object.values(TRANSITIONS).flatMap(({ from, to }) =>
  from.map((state): [RunState, RunState] => [state, to]),
)

function reachable(start: RunState): Set<RunState> {
  const seen = new Set<RunState>()
  const next = [start]
  for (let state = next.pop(); state !== undefined; state = next.pop()) {
    for (const [from, to] of moves) {
      if (from !== state || seen.has(to)) continue
      seen.add(to)
      next.push(to)
    }
  }
  return seen
}

const HOLDER = { workerId: 'w', leaseId: 'run.token' }
const run = (state: RunState, changes: Partial<RunFacts> = {}): RunFacts => ({
  state,
  version: 3,
  runAtMs: 1_000,
  ...HOLDER,
  startId: 's',
  leaderEpoch: 7,
  cancelRequestedAtMs: null,
  outcomeHash: isFinal(state) ? 'hash' : null,
  ...changes,
})

describe('the transition table', () => {
  test('active and final states are all states, and share none', () => {
    expect([...ACTIVE_STATES, ...FINAL_STATES].sort()).toEqual([...RUN_STATES].sort())
  })

  test('nothing leaves a final state', () => {
    for (const state of FINAL_STATES) expect(reachable(state)).toEqual(new Set())
  })

  test('nothing goes back, except that an orphan is assigned again', () => {
    const cycles = RUN_STATES.filter((state) => reachable(state).has(state))
    expect(cycles).toEqual(['ASSIGNED', 'ORPHANED'])
    const withoutReassignment = moves.filter(([from, to]) => !(from === 'ORPHANED' && to === 'ASSIGNED'))
    const order = new Map(RUN_STATES.map((state) => [state, longestWayTo(state, withoutReassignment)]))
    for (const [from, to] of withoutReassignment) expect(order.get(from)).toBeLessThan(order.get(to) ?? 0)
  })

  test('every state that is not final has a way to a final one', () => {
    for (const state of ACTIVE_STATES) {
      expect([...reachable(state)].filter(isFinal), state).toContain('CANCELED')
      expect([...reachable(state)].filter(isFinal), state).toContain('FAILED')
    }
  })

  test('the leader alone can end a run in any state that a worker holds', () => {
    const alone = ['expire', 'orphan', 'exhaust', 'cancel'] as const
    for (const state of ['ASSIGNED', 'RUNNING', 'ORPHANED'] as const) {
      expect(alone.some((verb) => (TRANSITIONS[verb].from as readonly RunState[]).includes(state))).toBe(true)
    }
  })
})

function longestWayTo(state: RunState, table: [RunState, RunState][]): number {
  return Math.max(0, ...table.filter(([, to]) => to === state).map(([from]) => 1 + longestWayTo(from, table)))
}

const repeat: Decision = { kind: 'repeat' }
const note: Decision = { kind: 'note' }
const move = (to: RunState): Decision => ({ kind: 'move', to })
const refuse = (reason: Extract<Decision, { kind: 'refuse' }>['reason']): Decision => ({ kind: 'refuse', reason })

/** The answer to the right holder with the right version, epoch, start id and outcome, in the order of RUN_STATES. */
const FOR_THE_HOLDER: Record<Exclude<RunCommand['verb'], 'adopt'>, [RunCommand, Decision[]]> = {
  lease: [
    { verb: 'lease' },
    [
      move('ASSIGNED'),
      refuse('LEASE_LOST'),
      refuse('LEASE_LOST'),
      move('ASSIGNED'),
      ...FINAL_STATES.map(() => refuse('ALREADY_ENDED')),
    ],
  ],
  start: [
    { verb: 'start', ...HOLDER, startId: 's', version: 3 },
    [
      refuse('LEASE_LOST'),
      move('RUNNING'),
      repeat,
      refuse('LEASE_LOST'),
      ...FINAL_STATES.map(() => refuse('ALREADY_ENDED')),
    ],
  ],
  finish: [
    { verb: 'finish', ...HOLDER, outcomeHash: 'hash', version: 3, leaderEpoch: 7 },
    [
      refuse('LEASE_LOST'),
      refuse('NOT_STARTED'),
      move('SUCCEEDED'),
      refuse('LEASE_LOST'),
      ...FINAL_STATES.map(() => repeat),
    ],
  ],
  fail: [
    { verb: 'fail', ...HOLDER, outcomeHash: 'hash', version: 3, leaderEpoch: 7 },
    [
      refuse('LEASE_LOST'),
      refuse('NOT_STARTED'),
      move('FAILED'),
      refuse('LEASE_LOST'),
      ...FINAL_STATES.map(() => repeat),
    ],
  ],
  heartbeat: [
    { verb: 'heartbeat', ...HOLDER },
    [refuse('LEASE_LOST'), note, note, refuse('LEASE_LOST'), ...FINAL_STATES.map(() => refuse('ALREADY_ENDED'))],
  ],
  release: [
    { verb: 'release', ...HOLDER },
    [
      refuse('LEASE_LOST'),
      move('ORPHANED'),
      move('FAILED'),
      repeat,
      ...FINAL_STATES.map(() => refuse('ALREADY_ENDED')),
    ],
  ],
  cancel: [
    { verb: 'cancel' },
    [
      move('CANCELED'),
      move('CANCELED'),
      note,
      move('CANCELED'),
      refuse('ALREADY_ENDED'),
      refuse('ALREADY_ENDED'),
      refuse('ALREADY_ENDED'),
      repeat,
    ],
  ],
}

describe('decide()', () => {
  for (const [verb, [command, decisions]] of Object.entries(FOR_THE_HOLDER)) {
    test.each(RUN_STATES.map((state, i) => [state, decisions[i]] as const))(
      `${verb} of a run that is %s`,
      (state, expected) => {
        expect(decide(run(state), command, 1_000)).toEqual(expected)
      },
    )
  }

  const LATE = { verb: 'adopt', workerId: 'w', leaseId: 'before.token', outcomeHash: 'hash' } as const
  const before = { state: 'TIMED_OUT', workerId: 'w', leaseId: 'before.token' } as const
  const waiting = { workerId: null, leaseId: null, startId: null, before }

  test.each(RUN_STATES)('adopt of a run that is %s: only a waiting run that no worker had', (state) => {
    const untouched = run(state, { ...waiting, outcomeHash: null })
    const refused = refuse(isFinal(state) ? 'ALREADY_ENDED' : 'LEASE_LOST')
    expect(decide(untouched, LATE, 0)).toEqual(state === 'PENDING' ? move('RUNNING') : refused)
    expect(decide({ ...untouched, workerId: 'other' }, LATE, 0)).toEqual(refused)
    expect(decide({ ...untouched, workerId: 'other', outcomeHash: 'hash' }, LATE, 0)).toEqual(refused)
  })

  test('adopt is refused unless the worker held the run that timed out', () => {
    const others = [
      undefined,
      { ...before, state: 'FAILED' as const },
      { ...before, leaseId: 'before.other' },
      { ...before, workerId: 'other' },
    ]
    for (const other of others) {
      const { before: _, ...facts } = run('PENDING', waiting)
      const changed = other === undefined ? facts : { ...facts, before: other }
      expect(decide(changed, LATE, 0)).toEqual(refuse('LEASE_LOST'))
    }
  })

  test('a repeated late report is a repeat, and another one is refused', () => {
    const adopted = run('SUCCEEDED', { leaseId: 'run.new', startId: 'before.token', before })
    expect(decide(adopted, LATE, 0)).toEqual(repeat)
    expect(decide(adopted, { ...LATE, outcomeHash: 'other' }, 0)).toEqual(refuse('OUTCOME_ALREADY_RECORDED'))
  })

  test('a lease before run_at is not due', () => {
    expect(decide(run('PENDING', { runAtMs: 1_001 }), { verb: 'lease' }, 1_000)).toEqual(refuse('NOT_DUE'))
  })

  test('a start by another process of the same worker is refused once the run is RUNNING', () => {
    expect(decide(run('RUNNING'), { verb: 'start', ...HOLDER, startId: 'other' }, 0)).toEqual(refuse('NOT_ASSIGNED'))
  })

  test('an old version or epoch is named in the refusal', () => {
    expect(decide(run('ASSIGNED'), { verb: 'start', ...HOLDER, startId: 's', version: 2 }, 0)).toEqual(
      refuse('VERSION_MISMATCH'),
    )
    const finish = { verb: 'finish', ...HOLDER, outcomeHash: 'hash' } as const
    expect(decide(run('RUNNING'), { ...finish, version: 2 }, 0)).toEqual(refuse('VERSION_MISMATCH'))
    expect(decide(run('RUNNING'), { ...finish, leaderEpoch: 8 }, 0)).toEqual(refuse('EPOCH_MISMATCH'))
  })

  test('another outcome after the end is refused, and any after an end without one', () => {
    const finish = { verb: 'finish', ...HOLDER, outcomeHash: 'other' } as const
    expect(decide(run('SUCCEEDED'), finish, 0)).toEqual(refuse('OUTCOME_ALREADY_RECORDED'))
    expect(decide(run('TIMED_OUT', { outcomeHash: null }), finish, 0)).toEqual(refuse('ALREADY_ENDED'))
  })

  test('a released run ends once; the release may be repeated, but nothing else', () => {
    const ended = run('FAILED', { outcomeHash: RELEASED_OUTCOME })
    expect(decide(ended, { verb: 'release', ...HOLDER }, 0)).toEqual(repeat)
    const finish = { verb: 'finish', ...HOLDER, outcomeHash: 'hash' } as const
    expect(decide(ended, finish, 0)).toEqual(refuse('OUTCOME_ALREADY_RECORDED'))
    const wished = run('RUNNING', { cancelRequestedAtMs: 5 })
    expect(decide(wished, { verb: 'release', ...HOLDER }, 0)).toEqual(move('CANCELED'))
  })

  test('after a cancel request the run ends CANCELED, whatever the worker reports', () => {
    for (const verb of ['finish', 'fail'] as const) {
      const command = { verb, ...HOLDER, outcomeHash: 'hash' }
      expect(decide(run('RUNNING', { cancelRequestedAtMs: 5 }), command, 0)).toEqual(move('CANCELED'))
    }
  })
})

const small = fc.constantFrom('a', 'b')
const before = fc.record({
  state: fc.constantFrom(...RUN_STATES),
  workerId: fc.option(small),
  leaseId: fc.option(small),
})
const facts: fc.Arbitrary<RunFacts> = fc.record({
  state: fc.constantFrom(...RUN_STATES),
  version: fc.integer({ min: 1, max: 3 }),
  runAtMs: fc.integer({ min: 0, max: 3 }),
  workerId: fc.option(small),
  leaseId: fc.option(small),
  startId: fc.option(small),
  leaderEpoch: fc.option(fc.integer({ min: 1, max: 3 })),
  cancelRequestedAtMs: fc.option(fc.nat()),
  outcomeHash: fc.option(small),
  before,
})
const guards = { workerId: small, leaseId: small }
const version = fc.integer({ min: 1, max: 3 })
const commands: fc.Arbitrary<RunCommand> = fc.oneof(
  fc.record({ verb: fc.constant('lease' as const) }),
  fc.record({ verb: fc.constant('cancel' as const) }),
  fc.record({ verb: fc.constantFrom('heartbeat' as const, 'release' as const), ...guards }),
  fc.record({ verb: fc.constant('adopt' as const), ...guards, outcomeHash: small }),
  fc.record(
    { verb: fc.constant('start' as const), ...guards, startId: small, version },
    { requiredKeys: ['verb', 'workerId', 'leaseId', 'startId'] },
  ),
  fc.record(
    {
      verb: fc.constantFrom('finish' as const, 'fail' as const),
      ...guards,
      outcomeHash: small,
      version,
      leaderEpoch: version,
    },
    { requiredKeys: ['verb', 'workerId', 'leaseId', 'outcomeHash'] },
  ),
)

describe('decide() for any state and command', () => {
  test('every move is in the table', () => {
    fc.assert(
      fc.property(facts, commands, (row, command) => {
        const decision = decide(row, command, 2)
        if (decision.kind === 'move') expect(moves).toContainEqual([row.state, decision.to])
      }),
      { numRuns: 2_000 },
    )
  })

  test('without the lease a worker changes nothing and repeats nothing', () => {
    fc.assert(
      fc.property(facts, commands, (row, command) => {
        const held = command.verb === 'adopt' ? row.before : row
        fc.pre('leaseId' in command && (held?.workerId !== command.workerId || held.leaseId !== command.leaseId))
        expect(decide(row, command, 2)).toEqual(refuse('LEASE_LOST'))
      }),
      { numRuns: 2_000 },
    )
  })

  test('an ended run is never moved or noted on', () => {
    fc.assert(
      fc.property(facts, commands, (row, command) => {
        fc.pre(isFinal(row.state))
        expect(['repeat', 'refuse']).toContain(decide(row, command, 2).kind)
      }),
      { numRuns: 2_000 },
    )
  })
})
