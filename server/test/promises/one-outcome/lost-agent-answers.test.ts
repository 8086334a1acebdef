import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { httpWorkerTransport, type RunInHand, WorkerLoop } from '@ichido/sdk/worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ask, enrollToken } from '../../../src/cli/testing/agent.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'
import { realWorld } from '../../../src/node/world.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-h17-test-'))
let server: Serving
let proxy: Server
const dropped = new Map<string, number>()

beforeAll(async () => {
  server = await serve({ DATA_DIR: join(folder, 'data') })
  proxy = createServer((request, response) => {
    // A poll may still wait when the test stops the server.
    void pass(request, response).catch(() => response.destroy())
  })
  async function pass(request: IncomingMessage, response: ServerResponse): Promise<unknown> {
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    const body = Buffer.concat(parts)
    const answer = await fetch(`${server.url}${request.url}`, {
      method: request.method ?? 'GET',
      headers: { authorization: request.headers.authorization ?? '', 'content-type': 'application/json' },
      body,
    })
    const text = await answer.text()
    // The server processes each call, but its first answer is dropped.
    const call = `${request.url} ${body}`
    const times = dropped.get(call) ?? 0
    dropped.set(call, times + 1)
    if (times === 0) return response.destroy()
    response.writeHead(answer.status, { 'x-request-id': answer.headers.get('x-request-id') ?? '' })
    return response.end(text)
  }
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
})
afterAll(async () => {
  proxy.closeAllConnections()
  proxy.close()
  await killAll()
  rmSync(folder, { recursive: true })
})

test.concurrent.each([
  ['started by a separate call', false],
  ['started by the call that leases them', true],
])('a proxy drops each answer once: runs %s stay at their first attempt', async (_, startAtOnce) => {
  const queue = `q-${startAtOnce}`
  const enroll_token = await enrollToken(server.url, queue)
  const made = await ask<{ worker_token: string }>(server.url, 'POST', '/v1/workers/register', { enroll_token })
  const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const transport = httpWorkerTransport({ url, token: () => made.worker_token, world: realWorld })
  const worked: string[] = []
  const work = async ({ lease }: RunInHand) => {
    worked.push(lease.job_id)
    return { result: { result: lease.payload } }
  }
  const jobs = await Promise.all(
    Array.from({ length: 3 }, (_, n) =>
      ask<{ job_id: string }>(server.url, 'POST', '/v1/jobs', { kind: 'k', queue, payload: n }),
    ),
  )
  const options = { queues: [queue], kinds: [], concurrency: 2, startAtOnce, work }
  const loop = new WorkerLoop(options, { transport, world: realWorld, onTrouble() {} })
  for (const [n, { job_id: jobId }] of jobs.entries()) {
    const result = await ask(server.url, 'GET', `/v1/jobs/${jobId}/result?wait_seconds=50`)
    expect(result).toMatchObject({ state: 'SUCCEEDED', result: n })
    const job = await ask(server.url, 'GET', `/v1/jobs/${jobId}`)
    expect(job).toMatchObject({ attempt: 1, retry_count: 0, runs: [{ state: 'SUCCEEDED' }] })
  }
  await loop.close(0)
  expect(worked.toSorted()).toEqual(jobs.map(({ job_id }) => job_id).toSorted())
})
