import { type Leased, type LeaseItem, leaseBatch, type Position } from '../../store/leasing/lease-runs.ts'
import { isFull, nameOf } from '../../store/leasing/leased.ts'
import type { Deps } from '../deps.ts'
import type { FairTags } from './fair-tags.ts'
import { KindRotations, LeasePositions } from './lease-positions.ts'

/** Wake-ups may get lost; then the queues that somebody waits for are looked at this often: a second is what it may take. */
const POLL_MS = 800
/** A transaction beyond this many polls or runs gains nothing and holds its locks longer. */
const POLLS_MAX = 100
const RUNS_MAX = 1_000
/** For how many runs those who wait ask after a wake-up; when all of them are there, the next ask for more at once. */
const PROBE_RUNS = 16
const PROBE_GROWTH = 4

/** Those who wait for the same kinds of the same queue, who came first first. */
interface Line {
  name: string
  queue: string
  kinds: readonly string[]
  polls: Set<Poll>
  /** There may be work. */
  woken: boolean
  probeRuns: number
  /** Until then its polls are not matched: the last time they could not be served right away. */
  matchFromMs: number
}

/** A job that is about to be submitted, as far as its place in the queue goes. */
interface ComingJob extends Position {
  runId: string
}

/** Waiting polls for jobs that are about to be submitted. No look takes these polls until the match has ended. */
interface PollMatch {
  /** One for each job, in the order of the jobs; all of them ask for the same kinds. */
  polls: readonly LeaseItem[]
  /** Jobs that have waited longer are looked for from here on; null: from the beginning. */
  from: Position | null
  /** The jobs were leased with their submission, each by its poll. */
  settle(leases: readonly Leased[]): void
  /** The jobs were not leased. `again`: a match is worth a try the next time. */
  decline(again: boolean): void
  /** The answer of the store was lost: nobody knows whether the jobs were leased. */
  unheard(): void
}

interface Poll {
  item: LeaseItem
  /** A worker that has lost the connection may ask again under the same one before this poll is known to be gone. */
  name: string
  lines: Line[]
  /** Has not been looked for yet, or must be once more. */
  fresh: boolean
  /** Does not wait any longer than until the look or the match that it is part of has ended. */
  over: boolean
  /** Whoever asked has gone. */
  gone: boolean
  /** There may have been work for it while it was matched. */
  passedOver: boolean
  settle(leases: Leased[]): void
  reject(error: unknown): void
}

/** Polls that are looked for together, and the queues to look at for each. */
type Chosen = ReadonlyMap<Poll, readonly string[]>

/**
 * Where all polls of a node stand. One transaction looks for many of them, one statement for all that want the same; and
 * when a queue is woken, only as many look as there is work for: a hundred who wait cost one look a second.
 */
export class PollDispatcher {
  readonly #deps: Deps
  readonly #positions: LeasePositions
  readonly #rotations = new KindRotations()
  readonly #lines = new Map<string, Line>()
  readonly #subscriptions = new Map<string, { lines: Set<Line>; end: () => void }>()
  readonly #fresh = new Set<Poll>()
  readonly #inLook = new Set<Poll>()
  /** By their names. */
  readonly #matched = new Map<string, Poll>()
  /** How many polls stand here under a name. */
  readonly #names = new Map<string, number>()
  readonly #fairTags: FairTags
  #looking = false
  #callOffPoll: (() => void) | null = null

  constructor(deps: Deps, fairTags: FairTags) {
    this.#deps = deps
    this.#positions = new LeasePositions(deps)
    this.#fairTags = fairTags
  }

  /** Leases now, or as soon as there is work; nothing when the time is up or the signal aborts before. */
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
        this.#leave(poll)
      }
      const poll: Poll = {
        item,
        name: nameOf(item),
        lines: [],
        fresh: true,
        over: waitMs <= 0,
        gone: false,
        passedOver: false,
        settle(leases) {
          leave()
          resolve(leases)
        },
        reject(error) {
          leave()
          reject(error)
        },
      }
      // It stands in line before the first look, so that nothing can happen unseen in between.
      this.#join(poll)
      this.#fresh.add(poll)
      this.#look()
    })
  }

  /** Waiting polls for jobs of one kind in one queue, if there are enough of them and no look is under way for them. */
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

  /** One for each of so many jobs. */
  #idle(line: Line, jobs: number): Poll[] | null {
    const idle: Poll[] = []
    for (const poll of line.polls) {
      if (this.#inLook.has(poll)) return null
      // One of two who ask under one name is gone, and nobody knows which.
      if (poll.fresh || this.#matched.has(poll.name) || this.#names.get(poll.name) !== 1) continue
      for (let i = 0; i < poll.item.max && idle.length < jobs; i++) idle.push(poll)
      if (idle.length === jobs) return idle
    }
    return null
  }

  #matchWith(line: Line, polls: readonly Poll[], jobs: readonly ComingJob[]): PollMatch | null {
    const from = this.#positions.from(line.queue, line.kinds)
    // Whether anything of any kind has waited longer can only be seen from the beginning.
    if (from !== null && line.kinds.length === 0) return null
    const inOrder = jobs.map((job, i) => ({ job, i })).sort((a, b) => orderOf(a.job, b.job))
    /** The poll of each job, in the order of the jobs. */
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
    for (const { queue, fairTag, priority, waitedMs } of leases) {
      this.#fairTags.leased(queue, fairTag, priority)
      if (waitedMs !== null) this.#deps.meter.started(waitedMs)
    }
    this.#deps.bus.wake(leases.map(({ jobId }) => `job:${jobId}` as const))
  }

  /** A poll that is part of a look or of a match is answered with what comes of that. */
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

  /** One look at a time: what arrives while it is under way is part of the next. */
  #look(): void {
    if (this.#looking) return
    this.#looking = true
    this.#deps.world.soon(() => void this.#lookUntilNothingIsLeft())
  }

  async #lookUntilNothingIsLeft(): Promise<void> {
    let polls = this.#choose()
    while (polls.size > 0) {
      const unserved = await this.#lookFor(polls)
      // Before anybody else is looked for, so that nobody's large payloads can keep them from theirs.
      polls = unserved.size > 0 ? unserved : this.#choose()
    }
    this.#looking = false
  }

  /** Of each line that was woken the first few, and who came since the last look. */
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
        // In the order that the worker gave them.
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

  /** Answers with those who got nothing, for whom there may be something when the others are served. */
  async #lookFor(chosen: Chosen): Promise<Chosen> {
    const { world, store, meter } = this.#deps
    const polls = [...chosen.keys()]
    for (const poll of polls) {
      this.#fresh.delete(poll)
      this.#inLook.add(poll)
    }
    const began = world.monotonic()
    let unserved: Chosen = new Map()
    try {
      const items = polls.map((poll) => ({ ...poll.item, queues: chosen.get(poll) ?? [] }))
      const answer = await store.write(leaseBatch(items, this.#positions.from, this.#rotations.places))
      this.#rotations.keep(answer.rotation)
      this.#positions.record(items, answer.leases)
      unserved = this.#answer(chosen, answer.leases)
    } catch (error) {
      for (const poll of polls) poll.reject(error)
    } finally {
      for (const poll of polls) if (!unserved.has(poll)) this.#inLook.delete(poll)
      meter.batch({ name: 'lease', items: polls.length, elapsedMs: world.monotonic() - began })
    }
    return unserved
  }

  #answer(chosen: Chosen, answers: readonly Leased[][]): Chosen {
    const all = answers.flat()
    const noRoom = isFull(all.reduce((bytes, { payload }) => bytes + Buffer.byteLength(payload), 0))
    const unserved = new Map<Poll, readonly string[]>()
    const probed = new Map<Line, { full: boolean }>()
    ;[...chosen].forEach(([poll, queues], i) => {
      const leases = answers[i] ?? []
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
      if (leases.length > 0 || poll.over) poll.settle(leases)
    })
    // Where everybody got all that they asked for, or that there was room for, there may be more, for those behind them.
    for (const [line, { full }] of probed) {
      line.probeRuns = full ? Math.min(RUNS_MAX, line.probeRuns * PROBE_GROWTH) : PROBE_RUNS
      if (full && line.polls.size > 0) line.woken = true
    }
    this.#leased(all)
    return unserved
  }
}

function orderOf(a: ComingJob, b: ComingJob): number {
  return b.priority - a.priority || a.fairTag - b.fairTag || (a.runId < b.runId ? -1 : 1)
}
