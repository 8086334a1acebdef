import {
  type LeaseAnswer,
  type Leased,
  type LeaseItem,
  leaseBatch,
  type Position,
} from '../../store/leasing/lease-runs.ts'
import { isFull, nameOf } from '../../store/leasing/leased.ts'
import type { Deps } from '../deps.ts'
import type { FairTags } from './fair-tags.ts'
import { KindRotations, LeasePositions } from './lease-positions.ts'

/** Wake-ups may get lost, so the queues with waiting polls are read this often: a lease may take a second. */
const POLL_MS = 800
const POLLS_MAX = 100
/** A larger transaction gains nothing. Of two smaller ones, the workers handle the first while the database executes the second. */
const RUNS_MAX = 500
/** How many runs the waiting polls ask for after a wake-up. If they get all of them, the next polls ask for more. */
const PROBE_RUNS = 16
const PROBE_GROWTH = 4

/** The poll of a draining worker looks again this often, in case the wake-up of its resume got lost. */
const DRAINING_LOOK_MS = 5_000

/** The polls for the same kinds of the same queue, oldest first. */
interface Line {
  name: string
  queue: string
  kinds: readonly string[]
  polls: Set<Poll>
  /** There may be work. */
  woken: boolean
  probeRuns: number
  /** Its polls are not matched before this time, because the last match failed. */
  matchFromMs: number
}

/** The place in the queue of a job that is being submitted. */
interface ComingJob extends Position {
  jobId: string
}

/** Waiting polls for jobs that are being submitted. No look takes these polls until the match has ended. */
interface PollMatch {
  /** One poll for each job, in the order of the jobs. All of them ask for the same kinds. */
  polls: readonly LeaseItem[]
  /** The position from which older jobs are searched; null: from the beginning. */
  from: Position | null
  /** The jobs were leased by their polls. */
  settle(leases: readonly Leased[]): void
  /** The jobs were not leased. `again`: the next match may succeed. */
  decline(again: boolean): void
  /** The answer of the store was lost, so the jobs may have been leased. */
  unheard(): void
}

interface Poll {
  item: LeaseItem
  /** Identifies the poll. A worker that reconnects may poll with the same name before this poll is known to be gone. */
  name: string
  lines: Line[]
  /** The poll has not been part of a look yet, or must be part of one again. */
  fresh: boolean
  /** The poll ends with the look or match that it is part of. */
  over: boolean
  /** The caller has disconnected. */
  gone: boolean
  /** A look has skipped the poll, because it was matched. */
  passedOver: boolean
  /** Set while its worker drains: the poll is in no line, so that it takes no turn of another poll. */
  callOffReturn: (() => void) | null
  /** Takes the poll out of its lines. It is answered afterwards. */
  leave(): void
  answer(leases: Leased[]): void
  settle(leases: Leased[]): void
  reject(error: unknown): void
}

/** The polls of one look, and the queues to read for each. */
type Chosen = ReadonlyMap<Poll, readonly string[]>

interface Looked {
  /** The polls that got nothing because the answer was full. The next look serves them. */
  unserved: Chosen
  /** Answers the other polls. */
  answer(): void
}

/**
 * All polls of a node. One transaction leases for many polls, with one statement for all that want the same. After a
 * wake-up only as many polls look as there is work for: a hundred waiting polls cost one look a second.
 */
export class PollDispatcher {
  readonly #deps: Deps
  readonly #positions: LeasePositions
  readonly #rotations = new KindRotations()
  readonly #lines = new Map<string, Line>()
  readonly #subscriptions = new Map<string, { lines: Set<Line>; end: () => void }>()
  readonly #fresh = new Set<Poll>()
  readonly #inLook = new Set<Poll>()
  /** Matched polls by name. */
  readonly #matched = new Map<string, Poll>()
  /** The number of polls with the same name. */
  readonly #names = new Map<string, number>()
  readonly #fairTags: FairTags
  #looking = false
  #callOffPoll: (() => void) | null = null

  constructor(deps: Deps, fairTags: FairTags) {
    this.#deps = deps
    this.#positions = new LeasePositions(deps)
    this.#fairTags = fairTags
  }

  /** Leases now, or as soon as there is work. The answer is empty if the time has passed or the signal aborts first. */
  lease(item: LeaseItem, waitMs: number, signal?: AbortSignal): Promise<Leased[]> {
    if (signal?.aborted) return Promise.resolve([])
    return new Promise((resolve, reject) => {
      const callOffEnd = waitMs > 0 ? this.#deps.world.after(waitMs, () => this.#end(poll)) : () => {}
      const onAbort = () => {
        poll.gone = true
        this.#end(poll)
      }
      signal?.addEventListener('abort', onAbort, { once: true })
      const leave = () => {
        callOffEnd()
        signal?.removeEventListener('abort', onAbort)
        if (poll.callOffReturn === null) this.#leave(poll)
        else poll.callOffReturn()
      }
      const poll: Poll = {
        item,
        name: nameOf(item),
        lines: [],
        fresh: true,
        over: waitMs <= 0,
        gone: false,
        passedOver: false,
        callOffReturn: null,
        leave,
        answer: resolve,
        settle(leases) {
          leave()
          resolve(leases)
        },
        reject(error) {
          leave()
          reject(error)
        },
      }
      // The poll joins its lines before the first look, so that it misses no wake-up.
      this.#join(poll)
      this.#fresh.add(poll)
      this.#look()
    })
  }

  /** Waiting polls for jobs of one kind in one queue, if there are enough and none is part of a look. */
  match(queue: string, kind: string, jobs: readonly ComingJob[]): PollMatch | null {
    const subscription = this.#subscriptions.get(queue)
    if (subscription === undefined) return null
    for (const line of subscription.lines) {
      if (line.woken || line.matchFromMs > this.#deps.world.monotonic()) continue
      if (line.kinds.length > 0 && !line.kinds.includes(kind)) continue
      const polls = this.#idle(line, jobs.length)
      if (polls !== null) return this.#matchWith(line, polls, jobs)
    }
    return null
  }

  /** One waiting poll for each job; null: there are not enough. */
  #idle(line: Line, jobs: number): Poll[] | null {
    const idle: Poll[] = []
    for (const poll of line.polls) {
      if (this.#inLook.has(poll)) return null
      // One of two polls with the same name is gone, and it is unknown which.
      if (poll.fresh || this.#matched.has(poll.name) || this.#names.get(poll.name) !== 1) continue
      for (let i = 0; i < poll.item.max && idle.length < jobs; i++) idle.push(poll)
      if (idle.length === jobs) return idle
    }
    return null
  }

  #matchWith(line: Line, polls: readonly Poll[], jobs: readonly ComingJob[]): PollMatch | null {
    const from = this.#positions.from(line.queue, line.kinds)
    // Without kinds, only a scan from the beginning shows whether an older job waits.
    if (from !== null && line.kinds.length === 0) return null
    const inOrder = jobs.map((job, i) => ({ job, i })).sort((a, b) => orderOf(a.job, b.job))
    /** The poll of each job, by the index of the job. */
    const pollOf = new Map(inOrder.map(({ i }, place) => [i, polls[place]]))
    const each = new Set(polls)
    for (const poll of each) this.#matched.set(poll.name, poll)
    const end = () => {
      for (const { name } of each) this.#matched.delete(name)
      if (this.#fresh.size > 0) this.#look()
    }
    return {
      polls: jobs.flatMap((_, i) => pollOf.get(i)?.item ?? []),
      from,
      settle: (leases) => {
        for (const poll of each) {
          const mine = inOrder.filter(({ i }) => pollOf.get(i) === poll)
          poll.settle(mine.flatMap(({ i }) => leases[i] ?? []))
        }
        end()
        this.#leased(leases)
      },
      decline: (again) => {
        for (const poll of each) {
          if (poll.over) poll.settle([])
          else if (poll.passedOver) this.#wake(poll.lines)
          poll.passedOver = false
        }
        if (!again) line.matchFromMs = this.#deps.world.monotonic() + POLL_MS
        end()
      },
      unheard: () => {
        for (const poll of each) {
          poll.item = { ...poll.item, named: true }
          poll.fresh = true
          this.#fresh.add(poll)
        }
        end()
      },
    }
  }

  #leased(leases: readonly Leased[]): void {
    for (const { queue, kind, fairTag, priority, waitedMs } of leases) {
      this.#fairTags.leased(queue, fairTag, priority)
      if (waitedMs !== null) this.#deps.meter.started(waitedMs, queue, kind)
    }
    this.#deps.bus.wake(leases.map(({ jobId }) => `job:${jobId}` as const))
  }

  /** A poll that is part of a look or a match ends with its result. */
  #end(poll: Poll): void {
    if (this.#inLook.has(poll) || this.#matched.get(poll.name) === poll) poll.over = true
    else poll.settle([])
  }

  #join(poll: Poll): void {
    this.#names.set(poll.name, (this.#names.get(poll.name) ?? 0) + 1)
    const kinds = JSON.stringify(poll.item.kinds)
    for (const queue of new Set(poll.item.queues)) {
      const name = JSON.stringify([queue, kinds])
      let line = this.#lines.get(name)
      if (line === undefined) {
        const { kinds } = poll.item
        line = { name, queue, kinds, polls: new Set(), woken: false, probeRuns: PROBE_RUNS, matchFromMs: 0 }
        this.#lines.set(name, line)
      }
      line.polls.add(poll)
      poll.lines.push(line)
      this.#subscribe(line)
    }
    if (!poll.over) this.#pollLater()
  }

  #subscribe(line: Line): void {
    const { queue } = line
    const lines = this.#subscriptions.get(queue)?.lines ?? new Set()
    lines.add(line)
    if (this.#subscriptions.has(queue)) return
    const end = this.#deps.bus.subscribe(`queue:${queue}`, () => this.#wake(lines))
    this.#subscriptions.set(queue, { lines, end })
  }

  #leave(poll: Poll): void {
    this.#fresh.delete(poll)
    const left = (this.#names.get(poll.name) ?? 1) - 1
    if (left > 0) this.#names.set(poll.name, left)
    else this.#names.delete(poll.name)
    for (const line of poll.lines) {
      line.polls.delete(poll)
      if (line.polls.size > 0) continue
      this.#lines.delete(line.name)
      const subscription = this.#subscriptions.get(line.queue)
      subscription?.lines.delete(line)
      if (subscription?.lines.size === 0) {
        subscription.end()
        this.#subscriptions.delete(line.queue)
      }
    }
    if (this.#lines.size === 0) {
      this.#callOffPoll?.()
      this.#callOffPoll = null
    }
  }

  /** The worker of the poll drains: the poll leaves its lines until the worker is resumed. */
  #setAside(poll: Poll): void {
    // It may have been the only one that looked.
    for (const line of poll.lines) line.woken = true
    this.#leave(poll)
    poll.lines = []
    const callOffs = [
      this.#deps.bus.subscribe(`worker:${poll.item.workerId}`, () => this.#takeBack(poll)),
      this.#deps.world.after(DRAINING_LOOK_MS, () => this.#takeBack(poll)),
    ]
    poll.callOffReturn = () => {
      for (const callOff of callOffs) callOff()
      poll.callOffReturn = null
    }
  }

  #takeBack(poll: Poll): void {
    poll.callOffReturn?.()
    poll.fresh = true
    this.#join(poll)
    this.#fresh.add(poll)
    this.#look()
  }

  #wake(lines: Iterable<Line>): void {
    for (const line of lines) line.woken = true
    this.#look()
  }

  #pollLater(): void {
    if (this.#callOffPoll !== null) return
    this.#callOffPoll = this.#deps.world.after(POLL_MS, () => {
      this.#callOffPoll = null
      if (this.#lines.size === 0) return
      this.#pollLater()
      this.#wake(this.#lines.values())
    })
  }

  /** One look at a time. Polls that arrive during a look are part of the next. */
  #look(): void {
    if (this.#looking) return
    this.#looking = true
    this.#deps.world.soon(() => void this.#lookUntilNothingIsLeft())
  }

  async #lookUntilNothingIsLeft(): Promise<void> {
    let polls = this.#choose()
    while (polls.size > 0) {
      const { unserved, answer } = await this.#lookFor(polls)
      // Unserved polls come first, so that large payloads of others cannot delay them again.
      polls = unserved.size > 0 ? unserved : this.#choose()
      // After the next statement was sent, so that the database works while the workers of this process begin these runs.
      if (polls.size > 0) this.#deps.world.soon(answer)
      else answer()
    }
    this.#looking = false
  }

  /** The first polls of each woken line, and the new polls. */
  #choose(): Chosen {
    const chosen = new Map<Poll, readonly string[]>()
    let runs = 0
    const take = (poll: Poll, queues: readonly string[]) => {
      if (chosen.size > 0 && (chosen.size >= POLLS_MAX || runs + poll.item.max > RUNS_MAX)) return false
      chosen.set(poll, queues)
      runs += poll.item.max
      return true
    }
    for (const line of this.#lines.values()) {
      if (!line.woken) continue
      let probed = 0
      for (const poll of line.polls) {
        if (probed >= line.probeRuns) break
        if (this.#matched.has(poll.name)) {
          poll.passedOver = true
          continue
        }
        const queues = chosen.get(poll)
        if (queues?.includes(line.queue)) continue
        if (queues === undefined && !take(poll, poll.fresh ? poll.item.queues : [line.queue])) return chosen
        // In the order of the worker's queues.
        if (queues !== undefined) {
          chosen.set(
            poll,
            poll.item.queues.filter((queue) => queue === line.queue || queues.includes(queue)),
          )
        }
        probed += poll.item.max
      }
      line.woken = false
    }
    for (const poll of this.#fresh) {
      if (chosen.has(poll) || this.#matched.has(poll.name)) continue
      if (!take(poll, poll.item.queues)) return chosen
    }
    return chosen
  }

  async #lookFor(chosen: Chosen): Promise<Looked> {
    const { world, store, meter } = this.#deps
    const polls = [...chosen.keys()]
    for (const poll of polls) {
      this.#fresh.delete(poll)
      this.#inLook.add(poll)
    }
    const began = world.monotonic()
    let looked: Looked = { unserved: new Map(), answer() {} }
    try {
      const items = polls.map((poll) => ({ ...poll.item, queues: chosen.get(poll) ?? [] }))
      const from = this.#positions.all(new Set(polls.flatMap(({ lines }) => lines)))
      const answer = await store.write(leaseBatch(items, from, this.#rotations.places))
      this.#rotations.keep(answer.rotation)
      this.#positions.scanned(answer.scanned, began)
      this.#positions.record(items, answer.leases)
      looked = this.#looked(chosen, answer)
    } catch (error) {
      for (const poll of polls) poll.reject(error)
    } finally {
      for (const poll of polls) if (!looked.unserved.has(poll)) this.#inLook.delete(poll)
      meter.batch({ name: 'lease', items: polls.length, elapsedMs: world.monotonic() - began })
    }
    return looked
  }

  #looked(chosen: Chosen, { leases: answers, draining }: LeaseAnswer): Looked {
    const all = answers.flat()
    const noRoom = isFull(all.reduce((bytes, { payload }) => bytes + Buffer.byteLength(payload), 0))
    const unserved = new Map<Poll, readonly string[]>()
    const served: [Poll, Leased[]][] = []
    const probed = new Map<Line, { full: boolean }>()
    ;[...chosen].forEach(([poll, queues], i) => {
      const leases = answers[i] ?? []
      if (leases.length === 0 && !poll.over && draining.has(poll.item.workerId)) {
        this.#setAside(poll)
        return
      }
      if (noRoom && leases.length === 0 && !poll.gone) {
        unserved.set(poll, queues)
        return
      }
      const full = noRoom || leases.length === poll.item.max
      for (const line of poll.lines) {
        if (poll.fresh || !queues.includes(line.queue)) continue
        probed.set(line, { full: full && (probed.get(line)?.full ?? true) })
      }
      poll.fresh = false
      if (leases.length === 0 && !poll.over) return
      poll.leave()
      served.push([poll, leases])
    })
    // If all polls of a line got everything that they asked for, there may be more for the next ones.
    for (const [line, { full }] of probed) {
      line.probeRuns = full ? Math.min(RUNS_MAX, line.probeRuns * PROBE_GROWTH) : PROBE_RUNS
      if (full && line.polls.size > 0) line.woken = true
    }
    this.#leased(all)
    const answer = () => {
      for (const [poll, leases] of served) poll.answer(leases)
    }
    return { unserved, answer }
  }
}

function orderOf(a: ComingJob, b: ComingJob): number {
  return b.priority - a.priority || a.fairTag - b.fairTag || (a.jobId < b.jobId ? -1 : 1)
}
