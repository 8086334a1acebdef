import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { TcpProxy } from '../../scripts/testing/proxy.ts'
import { killAll } from '../../server/src/cli/testing/cli.ts'
import { enlist, firstNote, kept, stopped, WITHIN } from './testing/enlist.ts'
import { type Plane, startPlane } from './testing/plane.ts'
import { findPython, killWorkers, type PythonWorker, script } from './testing/python.ts'

let python: string
let plane: Plane
beforeAll(async () => {
  ;[python, plane] = await Promise.all([findPython(), startPlane('sqlite')])
})
afterAll(async () => {
  await killWorkers()
  await plane.stop()
  await killAll()
})

const told = (worker: PythonWorker, line: string) => vi.waitFor(() => expect(worker.said()).toContain(line), WITHIN)

describe.concurrent('the messages of a worker on stderr', () => {
  test('a worker logs its identity, each run with its outcome, and its stop', async () => {
    const { queue, worker, options } = await enlist(python, plane, ['talk', 'fail', 'wait'])
    const submit = (kind: string, payload: unknown) => plane.submit({ kind, queue, payload, max_attempts: 1 })
    const good = await submit('talk', 1)
    await plane.jobIn(good, 'SUCCEEDED')
    const bad = await submit('fail', 'fatal')
    await plane.jobIn(bad, 'FAILED')
    const hostile = await submit('fail', 'hostile')
    await plane.jobIn(hostile, 'FAILED')
    const large = await submit('fail', 'too large')
    await plane.jobIn(large, 'FAILED')
    const given = await submit('wait', null)
    await told(worker, `job ${given} (wait, attempt 1) began`)
    const { code, stderr } = await stopped(worker)
    expect(code).toBe(0)
    const name = `${kept(options.tokenFile).worker_id}, process ${worker.pid}`
    expect(stderr.trimEnd().split('\n')).toEqual([
      expect.stringMatching(new RegExp(`^ichido: worker .+ \\(${name}\\) takes ${queue} from ${options.url}$`)),
      `ichido: job ${good} (talk, attempt 1) began`,
      expect.stringMatching(`^ichido: job ${good} \\(talk, attempt 1\\) succeeded, after \\d+\\.\\d s$`),
      `ichido: job ${bad} (fail, attempt 1) began`,
      expect.stringMatching(`^ichido: job ${bad} .* failed with BAD_IMAGE: There is no image, after \\d+\\.\\d s$`),
      `ichido: job ${hostile} (fail, attempt 1) began`,
      expect.stringMatching(`^ichido: job ${hostile} .* failed with BAD ]0;x : no  31m egami, after \\d+\\.\\d s$`),
      `ichido: job ${large} (fail, attempt 1) began`,
      expect.stringMatching(`^ichido: job ${large} .* succeeded`),
      expect.stringMatching(`^ichido: job ${large} .* failed with PAYLOAD_TOO_LARGE: `),
      `ichido: job ${given} (wait, attempt 1) began`,
      'ichido: takes no more work and waits for its runs; press Ctrl-C again to stop them',
      expect.stringMatching(`^ichido: job ${given} .* released, after`),
      'ichido: stopped',
    ])
  })

  test('an outage of the control plane and its end are logged once each', async () => {
    const { proxy, url } = await TcpProxy.before(plane.urls[0] ?? '')
    const { queue, worker, notes } = await enlist(python, plane, ['wait'], { url, concurrency: 2 })
    const times = { lease_ttl_seconds: 1, continuation_seconds: 3 }
    await plane.submit({ kind: 'wait', queue, max_attempts: 1, ...times })
    await firstNote(notes)
    proxy.rule = () => 'cut'
    proxy.cutAll()
    // By this time heartbeats and polls have both failed several times.
    await told(worker, 'failed with CONTINUATION_LOST: No heartbeat was confirmed in time')
    proxy.rule = () => 'pass'
    await told(worker, 'the control plane answers again')
    const { stderr } = await stopped(worker)
    expect(stderr.match(/the control plane cannot be reached: UNREACHABLE: .+/g)).toHaveLength(1)
    expect(stderr.match(/the control plane answers again/g)).toHaveLength(1)
    expect(stderr).not.toMatch(/no work|no heartbeat/)
    await proxy.close()
  })

  test('a program with its own logging setup decides where the messages go', async () => {
    const code = `
import io, logging, threading
said = io.StringIO()
logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s', stream=said)
worker = ichido.Worker(os.environ['URL'], os.environ['ENROLL'], queues=['q'], handlers={'k': print}, token_file=os.environ['FILE'])
worker.stop()
worker.run()
print(json.dumps(said.getvalue()))`
    const env = { URL: plane.urls[0] ?? '', ENROLL: await plane.enroll(), FILE: `${plane.folder}/logging.json` }
    expect(await script(python, code, env)).toEqual([
      expect.stringMatching(/^ichido worker .* takes q from .*\nichido stopped\n$/),
    ])
  })
})
