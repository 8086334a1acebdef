import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { JobDetail, SubmitRequest } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { size } from '../../scripts/testing/size.ts'
import { killAll } from '../../server/src/cli/testing/cli.ts'
import { ENGINES, type Engine, type Plane, startPlane } from './testing/plane.ts'
import {
  childrenOf,
  findPython,
  killWorkers,
  type Note,
  notesOf,
  type PythonWorker,
  startWorker,
} from './testing/python.ts'

const JOBS = size(6, 200)
const WORKERS = 3
const BLOWS = size(2, 80)
const [LEASE_SECONDS, CONTINUATION_SECONDS, ATTEMPTS_MAX] = [1, 2, 100]
const WITHIN_MS = size(1, 20) * 60_000
const QUEUE = 'kill'

let python: string
beforeAll(async () => {
  python = await findPython()
})
afterAll(async () => {
  await killWorkers()
  await killAll()
})

/** Workers that are killed and stopped at random. A new worker replaces each one that is gone. */
class Crew {
  readonly ledger: string
  readonly #plane: Plane
  readonly #workers: PythonWorker[] = []
  readonly #stopped = new Map<PythonWorker, Promise<void>>()

  constructor(plane: Plane) {
    this.#plane = plane
    this.ledger = join(plane.folder, 'ledger')
  }

  async start(): Promise<void> {
    for (let i = 0; i < WORKERS; i++) this.#workers.push(this.#launch(i, await this.#plane.enroll()))
  }

  #launch(i: number, enroll?: string): PythonWorker {
    return startWorker(python, {
      url: this.#plane.urls[i % this.#plane.urls.length] ?? '',
      queue: QUEUE,
      ...(enroll === undefined ? {} : { enroll }),
      tokenFile: join(this.#plane.folder, `worker-${i}.json`),
      ledger: this.ledger,
      handlers: ['tick'],
      concurrency: 4,
    })
  }

  /** Hits a busy worker as soon as there is one. A stopped worker is continued while others are hit. */
  async strike(blow: number): Promise<void> {
    const i = await vi.waitFor(() => this.#anyBusy(), { timeout: 30_000, interval: 20 })
    const worker = this.#workers[i]
    if (worker === undefined || this.#stopped.has(worker)) return
    if (blow % 2 === 1) {
      worker.kill('SIGKILL')
      await worker.ended
      this.#workers[i] = this.#launch(i)
    } else {
      worker.kill('SIGSTOP')
      const seconds = (LEASE_SECONDS + CONTINUATION_SECONDS) * (1 + Math.random())
      this.#stopped.set(
        worker,
        pause(seconds * 1000).then(() => {
          worker.kill('SIGCONT')
          this.#stopped.delete(worker)
        }),
      )
    }
  }

  #anyBusy(): number {
    const busy = this.#workers.flatMap((worker, i) => {
      const [supervisor] = this.#stopped.has(worker) ? [] : childrenOf(worker.pid)
      return supervisor !== undefined && childrenOf(supervisor).length > 0 ? [i] : []
    })
    const chosen = busy[Math.floor(Math.random() * busy.length)]
    if (chosen === undefined) throw new Error('Nobody is at work')
    return chosen
  }

  async stop(): Promise<void> {
    await Promise.all(this.#stopped.values())
    for (const worker of this.#workers) worker.kill('SIGTERM')
    await Promise.all(this.#workers.map(({ ended }) => ended))
  }
}

/** The first and last sign of work of each attempt, in the order of the attempts. */
function spans(notes: readonly Note[]): Map<string, { attempt: number; first: number; last: number }[]> {
  const jobs = new Map<string, Map<number, { attempt: number; first: number; last: number }>>()
  for (const { job, attempt, at } of notes) {
    const attempts = jobs.get(job) ?? new Map()
    jobs.set(job, attempts)
    const { first = at, last = at } = attempts.get(attempt) ?? {}
    attempts.set(attempt, { attempt, first: Math.min(first, at), last: Math.max(last, at) })
  }
  return new Map(
    [...jobs].map(([job, attempts]) => [job, [...attempts.values()].sort((a, b) => a.attempt - b.attempt)]),
  )
}

function overlaps(notes: readonly Note[]): unknown[] {
  return [...spans(notes)].flatMap(([job, all]) =>
    all.slice(1).flatMap((later, i) => {
      const earlier = all[i]
      return earlier !== undefined && earlier.last >= later.first ? [{ job, earlier, later }] : []
    }),
  )
}

/** Every fourth job comes first and takes longer than a worker may be silent, so that a missing kill is noticed. */
function requestOf(n: number): SubmitRequest {
  const long = n % 4 === 0
  const seconds = long ? 2 * (LEASE_SECONDS + CONTINUATION_SECONDS) : 0.3 + Math.random()
  return {
    kind: 'tick',
    queue: QUEUE,
    payload: { seconds, stubborn: n % 2 === 0 },
    priority: long ? 1 : 0,
    lease_ttl_seconds: LEASE_SECONDS,
    continuation_seconds: CONTINUATION_SECONDS,
    max_attempts: ATTEMPTS_MAX,
    backoff: { base_seconds: 0 },
  }
}

async function endsOf(plane: Plane, ids: readonly string[]): Promise<JobDetail[]> {
  return vi.waitFor(
    async () => {
      const jobs = await Promise.all(ids.map((id) => plane.job(id)))
      expect(jobs.map(({ state }) => state).filter((state) => state !== 'SUCCEEDED')).toEqual([])
      return jobs
    },
    { timeout: WITHIN_MS, interval: 300 },
  )
}

test.each<Engine>([...ENGINES])(
  'despite kills and stops each job is done once, by one attempt at a time (%s)',
  async (engine) => {
    const plane = await startPlane(engine)
    const crew = new Crew(plane)
    const ids = await Promise.all(Array.from({ length: JOBS }, (_, n) => plane.submit(requestOf(n))))
    await crew.start()
    for (let blow = 0; blow < BLOWS; blow++) {
      await crew.strike(blow)
      await pause(1_000 * Math.random())
    }
    const jobs = await endsOf(plane, ids)
    await crew.stop()

    const notes = notesOf(crew.ledger)
    expect(overlaps(notes)).toEqual([])
    for (const { job_id, runs, retry_count } of jobs) {
      expect(retry_count).toBeLessThan(ATTEMPTS_MAX)
      const done = runs.filter(({ state }) => state === 'SUCCEEDED')
      expect(done).toHaveLength(1)
      const { result } = await plane.call<{ result: unknown }>('GET', `/v1/jobs/${job_id}/result`)
      expect(result).toEqual({ attempt: done[0]?.attempt })
      const { events } = await plane.call<{ events: { data: { state?: string } }[] }>(
        'GET',
        `/v1/jobs/${job_id}/events`,
      )
      expect(events.filter(({ data }) => data.state === 'SUCCEEDED')).toHaveLength(1)
    }
    // The blows have hit running jobs. Otherwise the test shows nothing.
    expect(jobs.some(({ runs }) => runs.length > 1)).toBe(true)
    await plane.stop()
  },
  2 * WITHIN_MS,
)
