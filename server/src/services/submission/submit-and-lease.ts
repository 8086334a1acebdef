import type { Command } from '../../store/port.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from '../../store/submission/submission.ts'
import { type SubmitAndLeaseOutcome, submitAndLease } from '../../store/submission/submit-and-lease.ts'
import { arePlain } from '../../store/submission/submit-plain.ts'
import type { Deps } from '../deps.ts'
import type { PollDispatcher } from '../leasing/poll-dispatcher.ts'

/** Null: no poll waits for these jobs, and nothing was done. `alone` submits them without leasing them. */
export type SubmitToWaitingPolls = (
  items: readonly SubmitItem[],
  alone: () => Command<SubmitOutcome[]>,
) => Promise<SubmitOutcome[] | null>

/**
 * Matches a submission with waiting polls, so that one statement submits the jobs and leases them. Neither submitting
 * nor leasing knows of the other.
 */
export function createSubmitToWaitingPolls(
  { store, meter }: Deps,
  dispatcher: PollDispatcher,
  render: RenderAccepted,
): SubmitToWaitingPolls {
  function matchOf(items: readonly SubmitItem[]) {
    const [first] = items
    if (first === undefined || store.engine === 'sqlite') return null
    const { queue, kind } = first
    if (items.some((item) => item.queue !== queue || item.kind !== kind) || !arePlain(items)) return null
    return dispatcher.match(queue, kind, items)
  }

  return async (items, alone) => {
    const match = matchOf(items)
    if (match === null) return null
    let submission: SubmitAndLeaseOutcome
    try {
      submission = await store.write(submitAndLease(items, match, render))
    } catch (error) {
      match.unheard()
      throw error
    }
    switch (submission.kind) {
      case 'leased':
        match.settle(submission.leases)
        meter.leasedAtSubmit(items.length)
        return submission.outcomes
      case 'unheard':
        match.unheard()
        return submission.outcomes
      case 'declined':
        match.decline(!submission.plain)
        // The submission is not plain, so the fast path would fail again.
        return store.write(submission.plain ? alone() : { ...alone(), fastPath: undefined })
    }
  }
}
