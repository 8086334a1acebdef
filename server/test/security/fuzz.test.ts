import type { ServerResponse } from 'node:http'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { World } from '@ichido/sdk/world'
import { expect, test } from 'vitest'
import { seeded } from '../../../scripts/testing/seeded.ts'
import { full, size } from '../../../scripts/testing/size.ts'
import { STORE_TIMEOUT_MS } from '../../src/http/metrics/store-check.ts'
import { realWorld } from '../../src/node/world.ts'
import {
  type AccessScene,
  accessScene,
  accessTokens,
  liftMaxima,
  type Tokens,
} from '../../src/testing/http/access-scene.ts'
import { type TestApp, testApp } from '../../src/testing/http/app.ts'
import { testBlobs } from '../../src/testing/services/artifacts.ts'
import { ENGINES } from '../../src/testing/services/services.ts'
import { type ChangeLog, watchChanges } from '../../src/testing/store/change-log.ts'
import { OpenApi } from './fuzz/openapi.ts'
import { type RawAnswer, RawClient } from './fuzz/raw-client.ts'
import { type FuzzRequest, Requests, type Surroundings } from './fuzz/requests.ts'

/** Every `npm test` sends the same requests; each `npm run test:full` sends others. */
const SEED = Number(process.env.ICHIDO_FUZZ_SEED ?? (full ? Date.now() % 2 ** 31 : 1))
const REQUESTS = size(2_500, 100_000)
const WINDOWS = 3
const SCENE_EVERY = 500
const PROBLEMS_MAX = 10
/** Lazily compiled code and bounded maps take up to 4 MB. More is a leak: of 5 KB per request, or at full size of 1 KB. */
const HEAP_GROWTH_MAX = size(8, 64) * 1024 * 1024

/** On two busy cores, beside the rest of the suite. */
const WITHIN_MS = size(5, 60) * 60_000

/** A world in which waits of 1 to 50 seconds end immediately, so that long polls are short. */
function impatient(): World {
  let skippedMs = 0
  return {
    ...realWorld,
    monotonic: () => realWorld.monotonic() + skippedMs,
    after(ms, callback) {
      // Within 1 ms even a healthy store may not answer, and the node would not be ready.
      const kept = ms < 1_000 || ms > 50_000 || ms === STORE_TIMEOUT_MS
      if (kept) return realWorld.after(ms, callback)
      return realWorld.after(1, () => {
        skippedMs += ms
        callback()
      })
    },
  }
}

test.each(ENGINES)(
  `${REQUESTS} valid and invalid requests made from OpenAPI: %s`,
  { timeout: WITHIN_MS },
  async (engine) => {
    const { blobs, remove } = await testBlobs()
    const failures: unknown[] = []
    const http = await testApp(engine, {
      deps: { blobs, world: impatient() },
      logger: { ...silent, error: (what: unknown) => void failures.push(what) },
    })
    try {
      const run = await Fuzz.start(http, failures)
      const heaps: number[] = []
      for (let window = 0; window < WINDOWS; window++) {
        for (let i = 0; i < REQUESTS / WINDOWS; i++) await run.one()
        expect(run.problems, `ICHIDO_FUZZ_SEED=${SEED}`).toEqual([])
        heaps.push(usedHeap())
      }
      run.close()
      // At least a quarter of the requests must be accepted, or the code behind the first check is not tested.
      expect(run.accepted / REQUESTS).toBeGreaterThan(0.25)
      expect(Math.max(...heaps) - (heaps[0] ?? 0), `heap in bytes: ${heaps}`).toBeLessThan(HEAP_GROWTH_MAX)
    } finally {
      await http.close()
      remove()
    }
  },
)

class Fuzz {
  /** Both engines share it, because reading it takes a second. */
  static #described: OpenApi | undefined
  accepted = 0
  readonly problems: object[] = []
  readonly #http: TestApp
  readonly #api: OpenApi
  readonly #tokens: Tokens
  readonly #changes: ChangeLog
  readonly #client: RawClient
  readonly #requests: Requests
  readonly #failures: unknown[]
  /** The responses of unfinished uploads. */
  readonly #uploads = new Set<ServerResponse>()
  #ended: () => void = () => {}
  #sent = 0
  #around: Surroundings = { pools: {}, params: {}, tokens: { worker: '', admin: '', others: [] } }

  static async start(http: TestApp, failures: unknown[]): Promise<Fuzz> {
    const api = Fuzz.#described ?? new OpenApi((await http.call('GET', '/openapi.json')).body)
    Fuzz.#described = api
    const tokens = await accessTokens(http)
    await liftMaxima(http, tokens)
    await http.app.listen({ host: '127.0.0.1', port: 0 })
    return new Fuzz(http, api, tokens, await watchChanges(http.services.deps.store), failures)
  }

  private constructor(http: TestApp, api: OpenApi, tokens: Tokens, changes: ChangeLog, failures: unknown[]) {
    this.#http = http
    this.#api = api
    this.#tokens = tokens
    this.#changes = changes
    this.#failures = failures
    http.app.server.prependListener('request', ({ method, url }, response) => {
      if (method === 'POST' && url?.startsWith('/v1/artifacts')) this.#watch(response)
    })
    const address = http.app.server.address()
    if (address === null || typeof address === 'string') throw new Error('The server listens on a port')
    this.#client = new RawClient(address.port)
    this.#requests = new Requests(api, seeded(SEED), () => this.#around)
  }

  async one(): Promise<void> {
    if (this.#sent++ % SCENE_EVERY === 0) await this.#newScene()
    const request = this.#requests.next()
    const answer = await this.#client.send(request.bytes, { isHead: request.method === 'HEAD', cut: request.cut })
    if (request.cut) await this.#uploadsEnded()
    // A check after each successful GET would only cost time: the next check finds its changes.
    const looks = answer === null || answer.status >= 400 || request.method !== 'GET'
    const changed = looks ? await this.#changes.since() : []
    const problem = this.#problemOf(request, answer, changed)
    if (answer !== null && answer.status < 400) this.accepted++
    if (problem === null) return
    const sent = JSON.stringify(request.bytes.toString('latin1').slice(0, 4_000))
    const got = `${answer?.status} ${answer?.body.toString('utf8').slice(0, 1_000)}`
    const logged = this.#failures.splice(0).map((failure) => (failure as { err?: Error }).err?.stack ?? failure)
    this.problems.push({ number: this.#sent, problem, sent, got, logged })
    if (this.problems.length === PROBLEMS_MAX) expect(this.problems, `ICHIDO_FUZZ_SEED=${SEED}`).toEqual([])
  }

  #watch(response: ServerResponse): void {
    const { end } = response
    this.#uploads.add(response)
    response.end = (...args: unknown[]) => {
      this.#uploads.delete(response)
      this.#ended()
      return Reflect.apply(end, response, args)
    }
  }

  /** An interrupted upload records how far it came after its connection has closed. */
  async #uploadsEnded(): Promise<void> {
    while (this.#uploads.size > 0) {
      await new Promise<void>((resolve) => {
        this.#ended = resolve
      })
    }
  }

  close(): void {
    this.#client.close()
  }

  #problemOf({ operation, method, cut, strayed }: FuzzRequest, answer: RawAnswer | null, changed: string[]) {
    if (answer === null) return cut ? null : 'the server hung up'
    const { status, headers, body } = answer
    if (status >= 500 && status !== 503) return 'this is no answer to any request'
    // Node answers 417 to an unknown Expect header.
    if (status === 417) return null
    // The row of an upload exists before its bytes arrive, and stays so that the upload can continue.
    // The first look at the secret of a user makes it, and the change of a GET is found by the next check.
    const mayStay = ['callback_secrets', ...(operation.path === '/v1/artifacts' ? ['artifacts'] : [])]
    const kept = changed.filter((table) => !mayStay.includes(table))
    if (status >= 400 && kept.length > 0) return `it was refused and has changed ${changed.join()}`
    if (method === 'HEAD' || status === 304) return null
    const type = headers.get('content-type') ?? ''
    // In these cases the server does not know the operation.
    const unread = status === 431 || body.includes('The request is not valid HTTP')
    const described = strayed || cut || unread ? undefined : this.#api.find(method, operation.path)
    if (described !== undefined) return this.#api.problemOf(described, status, type, body)
    if (status < 400 || !type.startsWith('application/json')) return null
    return this.#api.errorProblem(body.includes('"success"') ? 'CloudError' : 'Error', body)
  }

  /** The requests so far have canceled, deleted and revoked the earlier scene. */
  async #newScene(): Promise<void> {
    const scene = await accessScene(this.#http, this.#sent, this.#tokens)
    const { admin, ...others } = this.#tokens
    const { worker, 'other worker': otherWorker, 'revoked worker': revoked } = scene.workers
    this.#around = {
      params: { ...scene.params, user_id: 'somebody' },
      pools: poolsOf(scene, this.#sent),
      tokens: {
        admin,
        worker: worker.token,
        others: [...Object.values(others), worker.token, otherWorker.token, revoked.token, 'wrong'],
      },
    }
    await this.#changes.since()
  }
}

function poolsOf({ params, queue, enrollTokens }: AccessScene, n: number) {
  const lease = [params.lease_id]
  return {
    ...Object.fromEntries(Object.entries(params).map(([name, value]) => [name, [value]])),
    name: [params.name, `other-${n}`, queue],
    user_id: ['somebody'],
    queue: [queue, 'default'],
    queues: [queue],
    kind: ['work', 'other'],
    kinds: ['work'],
    lease_ids: lease,
    known: lease,
    job_ids: [params['dead-letters:job_id']],
    wait_seconds: [0, 0.001],
    enroll_token: enrollTokens,
    token: enrollTokens,
    cron: ['@daily', '0 0 * * *', '*/5 * * * * *'],
    time_zone: ['UTC', 'Europe/Berlin'],
    idempotency_key: ['fuzz-1', 'fuzz-2', `fuzz-${n}`],
    dedupe_key: ['fuzz-1', `fuzz-${n}`],
    stage: ['progress'],
    after: ['0', '1'],
    cursor: [''],
  }
}

const silent = {
  level: 'error',
  ...Object.fromEntries(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'].map((name) => [name, () => {}])),
  child: () => silent,
} as unknown as NonNullable<Exclude<NonNullable<Parameters<typeof testApp>[1]>['logger'], false>>

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function usedHeap(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed
}
