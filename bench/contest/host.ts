import { setTimeout as sleep } from 'node:timers/promises'
import { flow } from '../measure.ts'
import type { Contestant, Latencies, Order, Pace, Paced, Reply, Round, Settings } from './contestant.ts'

/** Only the chosen contestant is loaded, so that the others take no memory of its process. */
const OPEN: Record<Settings['program'], (settings: Settings) => Promise<Contestant>> = {
  ichido: async (given) => (await import('../ichido/in-process.ts')).openInProcess(given),
  'ichido-http': async (given) => (await import('../ichido/over-http.ts')).openOverHttp(given),
  floor: async (given) => (await import('../ichido/floor.ts')).openFloor(given),
  'pg-boss': async (given) => (await import('../peers/pg-boss.ts')).openPgBoss(given),
  bullmq: async (given) => (await import('../peers/bullmq.ts')).openBullmq(given),
  'bee-queue': async (given) => (await import('../peers/bee-queue.ts')).openBeeQueue(given),
  'graphile-worker': async (given) => (await import('../peers/graphile-worker.ts')).openGraphileWorker(given),
}

const FILL_BATCH = 1_000
/** Jobs before the first measured one. Only some contestants open their connections anew for each round. */
const FIRST_JOBS = 10
const REPORT_MS = 2
const QUIET_USERS = 50

/** Opens a contestant and executes orders with it, one after the other. */
export async function host(settings: Settings, say: (reply: Reply) => void) {
  const contestant = await OPEN[settings.program](settings)
  const hosted = new Host(contestant, say)
  return {
    carryOut: (order: Order): Promise<Reply> => hosted.carryOut(order),
    close: () => contestant.close(),
  }
}

class Host {
  readonly #contestant: Contestant
  readonly #say: (reply: Reply) => void
  #used = 0
  #stop: (() => Promise<void>) | null = null
  /** The jobs that were handled since work began; a new set for each time. */
  #handled = new Set<number>()

  constructor(contestant: Contestant, say: (reply: Reply) => void) {
    this.#contestant = contestant
    this.#say = say
  }

  async carryOut(given: Order): Promise<Reply> {
    if ('batch' in given) return this.#submitRound(given)
    if ('fill' in given) return this.#fill(given.fill)
    if ('work' in given) return this.#work(given.work, given.handlerMs)
    if ('rest' in given) return this.#rest()
    if ('saturateMs' in given) return this.#saturate(given.callers, given.saturateMs)
    return this.#paced(given)
  }

  async #submitRound({ batch, keyed, ...load }: Round): Promise<Reply> {
    const contestant = this.#contestant
    const first = this.#used
    const call = (n: number) =>
      batch === 1 ? contestant.submit(first + n) : contestant.submitMany(first + n * batch, batch, keyed)
    const { calls, elapsedMs } = await flow(load, call)
    this.#used += calls * batch
    return { jobsPerSecond: (calls * batch * 1000) / elapsedMs }
  }

  async #fill(jobs: number, user?: string): Promise<Reply> {
    for (let left = jobs; left > 0; left -= FILL_BATCH) {
      const count = Math.min(left, FILL_BATCH)
      await this.#contestant.submitMany(this.#used, count, false, user)
      this.#used += count
    }
    return { done: true }
  }

  async #work(pace: Pace, handlerMs: number): Promise<Reply> {
    // An attempt that a contestant repeats counts once.
    const handled = new Set<number>()
    this.#handled = handled
    let reporting = false
    const report = () => {
      reporting = false
      if (this.#handled === handled) this.#say({ handled: handled.size })
    }
    const count = (n: number) => {
      if (n >= 0) handled.add(n)
      if (reporting) return
      reporting = true
      setTimeout(report, REPORT_MS)
    }
    const handle = handlerMs === 0 ? count : (n: number) => sleep(handlerMs).then(() => count(n))
    this.#stop = await this.#contestant.work(pace, handle)
    return { done: true }
  }

  async #rest(): Promise<Reply> {
    await this.#stop?.()
    this.#stop = null
    this.#handled = new Set()
    return { done: true }
  }

  async #saturate(callers: number, durationMs: number): Promise<Reply> {
    let handled = 0
    const stop = await this.#contestant.work('prompt', () => void handled++)
    const began = performance.now()
    const first = this.#used
    const { calls } = await flow({ callers, durationMs }, (n) => this.#contestant.submit(first + n))
    this.#used += calls
    while (handled < calls) await sleep(1)
    const elapsedMs = performance.now() - began
    await stop()
    return { jobsPerSecond: (calls * 1000) / elapsedMs }
  }

  async #paced(given: Paced): Promise<Latencies> {
    const { calls, everyMs, backlog } = given
    if (backlog > 0) await this.#fill(backlog, 'noisy')
    // The first jobs would wait behind a backlog, which warms up the contestant as well.
    const warmUps = backlog > 0 ? 0 : FIRST_JOBS
    const first = this.#used + warmUps
    this.#used = first + calls + given.long
    const measured = new Measured(given, first)
    const stop = await this.#contestant.work(given.pace, measured.handle)
    for (let n = first - warmUps; n < first; n++) await this.#contestant.submit(n)
    if (warmUps > 0) await measured.warm
    for (let n = first + calls; n < this.#used; n++) await this.#contestant.submit(n)
    const beganMs = performance.now()
    for (let i = 0; i < calls; i++) {
      const dueMs = beganMs + i * everyMs
      // The timers of Node have a resolution of a millisecond. What is due within it goes at once.
      if (dueMs - performance.now() > 1) await sleep(dueMs - performance.now())
      measured.submit(first + i, (n) =>
        backlog > 0 ? this.#contestant.submit(n, `quiet-${i % QUIET_USERS}`) : this.#contestant.submit(n),
      )
    }
    const found = await measured.all()
    await stop()
    return found
  }
}

/** The jobs of a paced run. The first jobs and those of a backlog have smaller numbers, and long jobs larger ones. */
class Measured {
  readonly #given: Paced
  readonly #first: number
  #backlog: number
  readonly #sentMs = new Map<number, number>()
  readonly #found: Latencies = { submitsMs: [], startsMs: [], tellsMs: [] }
  readonly #calls: Promise<void>[] = []
  #warmUps = 0
  readonly #warm = Promise.withResolvers<void>()
  readonly #allBegan = Promise.withResolvers<void>()
  readonly #allHandled = Promise.withResolvers<void>()
  readonly #end = Promise.withResolvers<void>()

  constructor(given: Paced, first: number) {
    this.#given = given
    this.#first = first
    this.#backlog = given.backlog
    if (given.backlog === 0) this.#allHandled.resolve()
  }

  submit(n: number, send: (n: number) => Promise<void>): void {
    const sentMs = performance.now()
    this.#sentMs.set(n, sentMs)
    this.#calls.push(send(n).then(() => void this.#found.submitsMs.push(performance.now() - sentMs)))
  }

  /** Resolves when the handlers of all first jobs have begun. */
  get warm(): Promise<void> {
    return this.#warm.promise
  }

  readonly handle = (n: number, tell: ((step: number) => Promise<unknown>) | null): void | Promise<void> => {
    const sentMs = this.#sentMs.get(n)
    const { handlerMs, tells, calls } = this.#given
    if (n >= this.#first + calls) return this.#end.promise
    if (n >= 0 && n < this.#first) this.#before()
    if (sentMs !== undefined) {
      this.#sentMs.delete(n)
      this.#found.startsMs.push(performance.now() - sentMs)
      if (this.#found.startsMs.length === calls) this.#allBegan.resolve()
    }
    if (handlerMs > 0 || tells) return this.#takeTime(handlerMs, tells ? tell : null)
  }

  /** A job that is not measured. */
  #before(): void {
    if (this.#given.backlog === 0 && ++this.#warmUps === FIRST_JOBS) this.#warm.resolve()
    if (this.#given.backlog > 0 && --this.#backlog === 0) this.#allHandled.resolve()
  }

  async #takeTime(handlerMs: number, tell: ((step: number) => Promise<unknown>) | null): Promise<void> {
    if (tell !== null) {
      const beganMs = performance.now()
      await tell(1)
      this.#found.tellsMs.push(performance.now() - beganMs)
    }
    await sleep(handlerMs)
  }

  async all(): Promise<Latencies> {
    await Promise.all(this.#calls)
    await this.#allBegan.promise
    await this.#allHandled.promise
    this.#end.resolve()
    return this.#found
  }
}
