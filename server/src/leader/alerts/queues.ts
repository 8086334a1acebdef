import { ONLINE_MS } from '../../services/workers.ts'
import { findQueues } from '../../store/commands/queues.ts'
import { findServedQueues } from '../../store/commands/waiting.ts'
import { integer, integerOrNull, text } from '../../store/statement.ts'
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
  const waiting = (await store.read(findQueues()))
    .filter((row) => integerOrNull(row, 'paused_at') === null)
    .map((row) => ({
      queue: text(row, 'name'),
      oldestMs: integerOrNull(row, 'oldest_ms') ?? 0,
      running: integer(row, 'running'),
      ready: integer(row, 'ready'),
    }))
    .sort((a, b) => b.oldestMs - a.oldestMs)
    .slice(0, QUEUES_MAX)
  const idle = waiting.filter(({ oldestMs, running }) => oldestMs > unservedMs && running === 0)
  const served = await store.read(
    findServedQueues(
      idle.map(({ queue }) => queue),
      ONLINE_MS,
    ),
  )
  const unserved = new Map(
    idle
      .filter(({ queue }) => !served.has(queue))
      .map(({ queue, ready }) => [
        queue,
        `Runs of the queue ${queue} are due (${ready}), and no worker takes it. Start one: ichido worker --queue ${queue} --exec COMMAND`,
      ]),
  )
  const old = new Map(
    waiting
      .filter(({ oldestMs }) => oldestMs > oldMs)
      .map(({ queue, oldestMs }) => [
        queue,
        `A run of the queue ${queue} has been due for ${Math.round(oldestMs / 1000)} s, longer than ${oldMs / 1000} s. Start more workers, or raise its limit`,
      ]),
  )
  const looks = [await compare(store, 'queue_unserved', unserved), await compare(store, 'oldest_waiting', old)]
  return { open: looks.flatMap(({ open }) => open), close: looks.flatMap(({ close }) => close) }
}
