import { ONLINE_MS } from '../../../services/workers/workers.ts'
import { findServedQueues, findWaitingQueues } from '../../../store/runs/waiting.ts'
import { compare, type Rule } from './look.ts'

/** Of so many queues, those that have waited longest. */
const QUEUES_MAX = 1_000

/**
 * Both rules look at runs that are due, in queues that are not paused. How long has passed is read off the oldest of these runs,
 * so that it does not begin anew with another leader.
 */
export const lookAtQueues: Rule = async ({ store, settings }) => {
  const unservedMs = settings.get('alert_queue_unserved_for_seconds') * 1000
  const oldMs = settings.get('alert_oldest_waiting_threshold_seconds') * 1000
  const waiting = (await store.read(findWaitingQueues())).slice(0, QUEUES_MAX)
  const late = waiting.filter(({ oldestMs }) => oldestMs > unservedMs).map(({ queue }) => queue)
  const served = late.length === 0 ? new Set() : await store.read(findServedQueues(late, ONLINE_MS))
  const unserved = late
    .filter((queue) => !served.has(queue))
    .map((queue): [string, string] => [
      queue,
      `Runs of the queue ${queue} are due, and no worker takes it. Start one: ichido worker --queue ${queue} --exec COMMAND`,
    ])
  const old = waiting
    .filter(({ oldestMs }) => oldestMs > oldMs)
    .map(({ queue, oldestMs }): [string, string] => [
      queue,
      `A run of the queue ${queue} has been due for ${Math.round(oldestMs / 1000)} s, longer than ${oldMs / 1000} s. Start more workers, or raise its limit`,
    ])
  const looks = [
    await compare(store, 'queue_unserved', new Map(unserved)),
    await compare(store, 'oldest_waiting', new Map(old)),
  ]
  return { open: looks.flatMap(({ open }) => open), close: looks.flatMap(({ close }) => close) }
}
