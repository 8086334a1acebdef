import type { QueueShape } from '@ichido/sdk/protocol'
import { Gauge, type Registry } from '@prometheus-io/client'
import { COUNTED_EACH_MAX, type DeadLetterCounts } from '../../services/dead-letters/dead-letters.ts'
import type { TriggerCounts } from '../../services/triggers/triggers.ts'

/** Of the queues with the most work: each has a few lines of its own. */
const QUEUES_MAX = 200

export function createQueueGauges(registers: Registry[]): (queues: readonly QueueShape[]) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, labelNames: ['queue'], registers })
  const ready = gauge('ichido_queue_ready', 'Due runs that no worker holds, also while the queue is paused or full')
  const delayed = gauge('ichido_queue_delayed', 'Runs that are not due yet')
  const leases = gauge('ichido_queue_active_leases', 'Runs that workers hold')
  const oldest = gauge(
    'ichido_queue_oldest_ready_seconds',
    'How long the oldest ready run has been due, also while the queue is paused or full; 0 when none is ready',
  )
  const paused = gauge('ichido_queue_paused', '1 while the queue is paused, else 0')
  const limit = gauge('ichido_queue_limit', 'How many runs workers may hold at a time (max_concurrent), if it is set')
  return (queues) => {
    for (const each of [ready, delayed, leases, oldest, paused, limit]) each.reset()
    const busiest = queues.toSorted((a, b) => b.ready + b.running - (a.ready + a.running)).slice(0, QUEUES_MAX)
    for (const { name: queue, ...found } of busiest) {
      ready.set({ queue }, found.ready)
      delayed.set({ queue }, found.delayed)
      leases.set({ queue }, found.running)
      oldest.set({ queue }, found.oldest_ready_seconds ?? 0)
      paused.set({ queue }, found.paused ? 1 : 0)
      if (found.max_concurrent !== null) limit.set({ queue }, found.max_concurrent)
    }
  }
}

export function createDeadLetterGauges(registers: Registry[]): (counts: DeadLetterCounts | null) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, labelNames: ['queue'], registers })
  const letters = gauge(
    'ichido_dead_letters',
    `Dead letters by queue, counted up to ${COUNTED_EACH_MAX} each; queues without any are left out`,
  )
  const oldest = gauge('ichido_dead_letter_oldest_seconds', 'How long the oldest dead letter has waited')
  const redrives = new Gauge({ name: 'ichido_redrives_running', help: 'Redrives that are not done yet', registers })
  return (counts) => {
    for (const each of [letters, oldest]) each.reset()
    setOrLeaveOut(redrives, counts?.redrivesRunning)
    for (const { queue, count, oldestMs } of counts?.queues ?? []) {
      letters.set({ queue }, count)
      oldest.set({ queue }, Math.max(0, oldestMs / 1000))
    }
  }
}

export function createTriggerGauges(registers: Registry[]): (counts: TriggerCounts | null) => void {
  const gauge = (name: string, help: string) => new Gauge({ name, help, registers })
  const unprocessed = gauge('ichido_triggers_unprocessed', 'Triggers that the leader has not processed yet')
  const oldest = gauge(
    'ichido_trigger_oldest_unprocessed_seconds',
    'The age of the oldest trigger that was not processed; 0 without any',
  )
  const waiting = gauge(
    'ichido_triggers_waiting',
    'Triggers that wait for a free slot, the end of a pause or their turn',
  )
  return (counts) => {
    setOrLeaveOut(unprocessed, counts?.unprocessed)
    setOrLeaveOut(oldest, counts === null ? undefined : Math.max(0, counts.oldestMs ?? 0) / 1000)
    setOrLeaveOut(waiting, counts?.waiting)
  }
}

/** A gauge without labels would be 0 of itself, and say that all is well when nobody knows. */
export function setOrLeaveOut(gauge: Gauge, value: number | undefined): void {
  if (value === undefined) gauge.remove()
  else gauge.set(value)
}
