import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { clientTools } from '../../../../../scripts/testing/debian-packages.ts'
import { ichidoJson, type Serving, serve } from '../../../cli/testing/cli.ts'
import { selfSigned } from '../../../testing/http/certificate.ts'
import { type Ended, S0Runner } from '../../../testing/http/s0-clients.ts'
import type { CloudAnswer, CloudJob } from './shapes.ts'

/** A server with tokens over TLS. The clients of S0 know only its URL, `https://ci:TOKEN@host`. */

const INSTALL_TIMEOUT_MS = 600_000

let folder: string
let clients: S0Runner
let server: Serving
let token: string
let url: string

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-tls-clients-'))
  const { cert, key } = selfSigned()
  const files = { TLS_CERT_FILE: join(folder, 'cert.pem'), TLS_KEY_FILE: join(folder, 'key.pem') }
  writeFileSync(files.TLS_CERT_FILE, cert)
  writeFileSync(files.TLS_KEY_FILE, key)
  const trust = {
    CURL_CA_BUNDLE: files.TLS_CERT_FILE,
    REQUESTS_CA_BUNDLE: files.TLS_CERT_FILE,
    SSL_CERT_FILE: files.TLS_CERT_FILE,
  }
  clients = new S0Runner(await clientTools(), folder, trust)
  const env = { DATA_DIR: join(folder, 'data') }
  token = (await ichidoJson(['token', 'create', '--user', 'ci', '--role', 'submitter'], env)).token
  server = await serve({ ...env, ...files, LOG_LEVEL: 'trace' })
  url = `https://ci:${token}@localhost:${new URL(server.url).port}`
}, INSTALL_TIMEOUT_MS)

afterAll(async () => {
  await server.stop()
  rmSync(folder, { recursive: true })
})

const newConfig = () => `config-${randomUUID()}`
const withWrongToken = () => url.replace(token, 'ichido_wrong')

async function jobsOf(config: string): Promise<string[]> {
  const { output } = await clients.shell(`curl -sf "${url}/api/cloud/jobs?limit=500"`)
  const { jobs } = JSON.parse(output) as { jobs: CloudJob[] }
  return jobs.filter((job) => job.config_name === config).map((job) => job.job_id)
}

describe('with a token in their URL,', () => {
  test('the bash script submits, and finds its job again', async () => {
    const [config, env] = [newConfig(), { GITHUB_REPOSITORY: 'example/models', GITHUB_SHA: randomUUID() }]
    const first = await clients.bash(url, config, env)
    const [job] = await jobsOf(config)
    expect(first).toMatchObject({ code: 0, output: expect.stringContaining(`Created new job: ${job}`) })
    const again = await clients.bash(url, config, env)
    expect(again).toMatchObject({ code: 0, output: expect.stringContaining(`Matched existing job: ${job}`) })
    expect(await jobsOf(config)).toEqual([job])
  })

  test('the Python client on requests submits', async () => {
    const config = newConfig()
    const { code, output } = await clients.requests(config, { url })
    const [job] = await jobsOf(config)
    expect({ code, answer: JSON.parse(output) as CloudAnswer }).toMatchObject({
      code: 0,
      answer: { success: true, job_id: job, status: 'uploading' },
    })
  })

  test('the Python client on aiohttp submits', async () => {
    const config = newConfig()
    const { output } = await clients.aiohttp({ base_url: url, config_name: config })
    const [job] = await jobsOf(config)
    expect(JSON.parse(output)).toEqual({ success: true, job_id: job, error: null, was_duplicate: false })
  })

  test('the step of GitHub Actions submits, and finds its job again', async () => {
    const sha = randomUUID()
    const first = await clients.actions(url, sha, 1)
    expect(first).toMatchObject({ code: 0, output: '', outputs: expect.stringMatching(/^job_id=[0-9a-f-]{36}\n$/) })
    const again = await clients.actions(url, sha, 2)
    expect(again).toMatchObject({ code: 0, outputs: first.outputs, output: expect.stringContaining('::notice::') })
  })

  test("the seed's curl call submits", async () => {
    const body = JSON.stringify({ config_name_to_load: newConfig(), idempotency_key: randomUUID() })
    const call = `curl -s -X POST '${url}/api/cloud/jobs/submit?provider=replicate' -H 'Content-Type: application/json' -d '${body}'`
    for (const idempotent_hit of [false, true]) {
      const { output } = await clients.shell(call)
      expect(JSON.parse(output)).toMatchObject({ success: true, idempotent_hit })
    }
  })
})

describe('with a wrong token in their URL,', () => {
  const refusal = /The token is missing, unknown, expired or revoked/

  test('the Python clients and curl can read why', async () => {
    const requests = await clients.requests(newConfig(), { url: withWrongToken() })
    expect(requests).toMatchObject({ code: 1, output: expect.stringMatching(refusal) })
    const aiohttp = await clients.aiohttp({ base_url: withWrongToken(), config_name: newConfig() })
    expect(JSON.parse(aiohttp.output)).toMatchObject({ success: false, error: expect.stringMatching(refusal) })
    const { output } = await clients.shell(
      `curl -s "${withWrongToken()}/api/cloud/jobs" | jq -r '.success, .error, .detail'`,
    )
    expect(output.split('\n')).toEqual(['false', expect.stringMatching(refusal), expect.stringMatching(refusal), ''])
  })

  test('the step of GitHub Actions fails', async () => {
    const { code, output } = await clients.actions(withWrongToken(), randomUUID(), 1)
    expect({ code, output }).toEqual({ code: 1, output: '::error::Job submission failed: Request failed\n' })
  })
})

describe("a client like SimpleTuner's own, with X-API-Key,", () => {
  /** It reads `detail` of a refusal, and prints the status and the text of each call. */
  const CLIENT = `
import json, os, ssl, sys, urllib.error, urllib.request

def call(method, path, body=None):
    request = urllib.request.Request(
        os.environ['URL'] + '/api/cloud' + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={'Content-Type': 'application/json', 'X-API-Key': os.environ['TOKEN']},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)['detail']

for line in json.loads(sys.argv[1]):
    print(json.dumps(call(*line)))
`
  type Line = [method: string, path: string, body?: object]
  async function calls<T>(...lines: Line[]): Promise<[number, T][]> {
    const env = { URL: `https://localhost:${new URL(url).port}`, TOKEN: token }
    const { code, output }: Ended = await clients.python(CLIENT, [JSON.stringify(lines)], env)
    expect({ code, output }).toMatchObject({ code: 0 })
    return output
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as [number, T])
  }

  test('submits, lists, shows, cancels and deletes a job', async () => {
    const config = newConfig()
    const [[, first]] = (await calls<CloudAnswer>(['POST', '/jobs/submit', { config_name_to_load: config }])) as [
      [number, CloudAnswer],
    ]
    const path = `/jobs/${first.job_id}`
    const answers = await calls<unknown>(
      ['GET', '/jobs?limit=20&status=queued&provider=replicate&sync_active=true'],
      ['GET', path],
      ['GET', `${path}/logs`],
      ['DELETE', path],
      ['POST', `${path}/cancel`],
      ['DELETE', path],
      ['GET', path],
    )
    const job = { job_id: first.job_id, config_name: config, status: 'queued', cost_usd: null, duration_seconds: null }
    expect(answers).toEqual([
      [200, expect.objectContaining({ jobs: expect.arrayContaining([expect.objectContaining(job)]) })],
      [200, { job: expect.objectContaining(job) }],
      [200, { job_id: first.job_id, logs: '' }],
      [200, expect.objectContaining({ success: false, error: expect.stringContaining('cancel it first') })],
      [200, expect.objectContaining({ success: true, status: 'cancelled' })],
      [200, { success: true, job_id: first.job_id, error: null }],
      [404, expect.stringContaining(String(first.job_id))],
    ])
  })

  test('reads in `detail` why a call is refused', async () => {
    expect(
      await calls(
        ['POST', '/jobs/submit', {}],
        ['GET', '/jobs?status=done'],
        ['GET', '/nothing'],
        ['PATCH', '/jobs'],
        ['POST', '/jobs/submit', { config_name_to_load: 'a', idempotency_key: 'two words' }],
      ),
    ).toEqual([
      [400, expect.stringContaining('config_name_to_load is missing')],
      [400, expect.stringContaining('status must be one of')],
      [404, 'There is no GET /api/cloud/nothing'],
      [405, expect.stringContaining('it takes')],
      [400, expect.stringMatching(/^idempotency_key must be visible ASCII .*no spaces.*character 4/)],
    ])
  })

  test('reads the health of the server and its own limits', async () => {
    const [cost, quota, status] = await calls(
      ['GET', '/metrics/cost-limit'],
      ['GET', '/metrics/quota'],
      ['GET', '/metrics/status'],
    )
    expect(cost).toEqual([200, expect.objectContaining({ enabled: false })])
    expect(quota).toEqual([200, expect.objectContaining({ user_id: 'ci', can_submit: true })])
    expect(status).toEqual([200, expect.objectContaining({ status: 'healthy' })])
  })
})

test('the server has logged no token', () => {
  const logged = server.stderr() + server.stdout()
  expect(logged).toContain('"code":"UNAUTHENTICATED"')
  const encoded = (text: string) => Buffer.from(`ci:${text}`).toString('base64')
  for (const secret of [token, 'ichido_wrong', encoded(token), encoded('ichido_wrong')]) {
    expect(logged).not.toContain(secret)
  }
})
