import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EnrollTokenShape, JobDetail, JobState, SubmitRequest, SubmitResponse } from '@ichido/sdk/protocol'
import { expect, vi } from 'vitest'
import { freshDatabase } from '../../../scripts/testing/services.ts'
import { full } from '../../../scripts/testing/size.ts'
import { type Serving, serve } from '../../../server/src/cli/testing/cli.ts'

export type Engine = 'sqlite' | 'postgres'
/** A client cannot tell the engines apart, and the server's own tests run on both. */
export const ENGINES: readonly Engine[] = full ? ['sqlite', 'postgres'] : ['sqlite']

/** A running control plane with its own processes and store. */
export interface Plane {
  /** The addresses of its nodes. */
  urls: readonly string[]
  folder: string
  call<T>(method: string, path: string, body?: unknown): Promise<T>
  submit(request: SubmitRequest): Promise<string>
  enroll(): Promise<string>
  job(jobId: string): Promise<JobDetail>
  jobIn(jobId: string, state: JobState, timeoutMs?: number): Promise<JobDetail>
  stop(): Promise<void>
}

export interface Planes {
  on(engine: Engine): Plane
  stop(): Promise<void>
}

/** Starts one on each engine. */
export async function startPlanes(): Promise<Planes> {
  const planes = await Promise.all(ENGINES.map(startPlane))
  return {
    on(engine) {
      const plane = planes[ENGINES.indexOf(engine)]
      if (plane === undefined) throw new Error(`There is no plane on ${engine} at this size`)
      return plane
    },
    async stop() {
      await Promise.all(planes.map((plane) => plane.stop()))
    },
  }
}

/** Two nodes if the engine allows it. */
export async function startPlane(engine: Engine): Promise<Plane> {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-python-'))
  const database = engine === 'postgres' ? await freshDatabase() : undefined
  const env = database === undefined ? { DATA_DIR: join(folder, 'data') } : { DATABASE_URL: database.url }
  const nodes: Serving[] = [await serve(env)]
  if (database !== undefined) nodes.push(await serve(env))
  const urls = nodes.map(({ url }) => url)

  async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
    const sent =
      body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
    const response = await fetch(`${urls[0]}${path}`, { method, ...sent })
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
    return (await response.json()) as T
  }

  const job = (jobId: string) => call<JobDetail>('GET', `/v1/jobs/${jobId}`)
  return {
    urls,
    folder,
    call,
    submit: async (request) => (await call<SubmitResponse>('POST', '/v1/jobs', request)).job_id,
    enroll: async () => (await call<EnrollTokenShape>('POST', '/v1/workers/enroll-tokens', {})).enroll_token,
    job,
    jobIn: (jobId, state, timeout = 30_000) =>
      vi.waitFor(
        async () => {
          const found = await job(jobId)
          expect(found.state).toBe(state)
          return found
        },
        { timeout, interval: 50 },
      ),
    async stop() {
      await Promise.all(nodes.map((node) => node.stop()))
      await database?.leave()
      rmSync(folder, { recursive: true })
    },
  }
}
