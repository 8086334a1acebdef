import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { RunLogShape } from '@ichido/sdk/protocol'
import { openLogArchive } from '../../log-archive/disk.ts'
import type { LogArchive } from '../../log-archive/port.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import type { LogBeginning } from '../../services/logs/logs.ts'
import { finished } from '../store/scene.ts'
import { unique } from '../store/store.ts'

export interface TestArchive {
  folder: string
  logArchive: LogArchive
  /** The names of the archive's files. */
  files(): string[]
  remove(): void
}

export async function testArchive(): Promise<TestArchive> {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-logs-'))
  return {
    folder,
    logArchive: await openLogArchive({ folder, world: realWorld }),
    files: () => (readdirSync(folder, { recursive: true }) as string[]).filter((name) => name.includes('.jsonl.gz')),
    remove: () => rmSync(folder, { recursive: true }),
  }
}

/** A job that a worker holds and has started. */
export interface Writing {
  jobId: string
  write(...texts: string[]): Promise<number>
  succeed(): Promise<void>
  fail(retryable: boolean): Promise<void>
}

const NO_BACKOFF = { base_seconds: 0, cap_seconds: 0, jitter: 0 }
const WORKER = 'local-writer'

export async function beginWriting(services: Services, queue = unique('q')): Promise<Writing & { runId: string }> {
  const submitted = await services.submission.submit(
    LOCAL_ADMIN,
    { kind: 'work', queue, backoff: NO_BACKOFF },
    { key: null },
  )
  if (submitted.kind === 'refused') throw new Error(submitted.refusal.message)
  return leaseWriting(services, queue)
}

/** Leases and starts the next run of the queue. */
export async function leaseWriting(services: Services, queue: string): Promise<Writing & { runId: string }> {
  const request = { queues: [queue], kinds: [], max: 1, waitMs: 10_000, startId: 's' }
  const [lease] = await services.runs.lease(WORKER, request)
  if (lease === undefined) throw new Error('There is no run to lease')
  const { lease_id: leaseId, job_id: jobId, run_id: runId } = lease
  let n = 0
  return {
    jobId,
    runId,
    write(...texts) {
      const chunks = texts.map((text) => ({
        n,
        stream: n++ % 3 === 2 ? ('stderr' as const) : ('stdout' as const),
        text,
      }))
      return services.logs.append(WORKER, leaseId, chunks)
    },
    async succeed() {
      await services.runs.finish(WORKER, leaseId, finished())
    },
    async fail(retryable) {
      const error = { code: 'BROKEN', message: 'It broke' }
      await services.runs.finish(WORKER, leaseId, { verb: 'fail', error, retryable })
    },
  }
}

/** A whole log, in pages of this size. */
export async function pagesOf(services: Services, jobId: string, limit: number): Promise<RunLogShape[]> {
  const found: RunLogShape[] = []
  for (let after: string | null = null; ; ) {
    const page = await services.logs.read(LOCAL_ADMIN, jobId, { after }, limit)
    found.push(...page.data)
    if (page.next_cursor === null) return found
    after = page.next_cursor
  }
}

export async function textOf(services: Services, jobId: string, beginning: LogBeginning = { after: null }) {
  let all = ''
  for await (const { text } of await services.logs.readAll(LOCAL_ADMIN, jobId, beginning)) all += text
  return all
}
