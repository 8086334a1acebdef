import { promoteDue } from '../../store/leasing/promote-runs.ts'
import type { Store } from '../../store/port.ts'
import { sql } from '../store/store.ts'
import type { Answer, Call, TestApp } from './app.ts'

/** The requests of S1's front end and workers, for tests. */

const CONTENT = "&CONTROL\n calculation='relax'\n/\nATOMIC_POSITIONS angstrom\n H 0 0 0\n H 0 0 0.74\n"
export const JOB = { content: CONTENT, mobile_indices: [0, 1], use_environ: false }
export const RESULT = {
  result: { zpe_ev: 0.2672, freqs_cm: [4310.4] },
  summary_text: 'Zero-point energy 0.2672 eV\n',
  freqs_csv: 'mode,frequency_cm-1\n0,4310.4\n',
  meta: {
    worker_hostname: 'lab',
    computation_time_seconds: 6.1,
    qe_version: '6.7MaX',
    timestamp: '2026-11-16T00:00:00Z',
  },
}
export const FAILURE = { error_code: 'QE_RUNTIME_ERROR', error_message: 'pw.x exited with code 1' }

export interface ZpeLease {
  job_id: string
  lease_id: string
  payload: unknown
  lease_ttl_seconds: number
}

/** A registered worker with its token. */
export class ZpeWorker {
  readonly #http: TestApp
  readonly id: string
  readonly token: string

  constructor(http: TestApp, id: string, token: string) {
    this.#http = http
    this.id = id
    this.token = token
  }

  /** `operator` is an operator's token; open mode needs none. */
  static async register(http: TestApp, operator?: string): Promise<ZpeWorker> {
    const as = operator === undefined ? {} : { token: operator }
    const enrolled = await http.call('POST', '/calc/zpe/compute/enroll-tokens', as)
    const { token } = enrolled.body as { token: string }
    const { body } = await http.call('POST', '/calc/zpe/compute/servers/register', { body: { token } })
    const { worker_id, worker_token } = body as { worker_id: string; worker_token: string }
    return new ZpeWorker(http, worker_id, worker_token)
  }

  /** The same worker at another node. */
  at(http: TestApp): ZpeWorker {
    return new ZpeWorker(http, this.id, this.token)
  }

  call(path: string, call: Call = {}): Promise<Answer> {
    return this.#http.call('POST', `/calc/zpe/compute/jobs/${path}`, { token: this.token, ...call })
  }

  lease(call: Call = {}): Promise<Answer> {
    return this.call('lease', call)
  }

  /** Leases a job, and fails if there is none. */
  async leased(): Promise<ZpeLease> {
    const { status, body, text } = await this.lease()
    if (status !== 200) throw new Error(`A lease was answered with ${status}: ${text}`)
    return body as ZpeLease
  }

  result(jobId: string, body: object = RESULT, headers: Record<string, string> = {}): Promise<Answer> {
    return this.call(`${jobId}/result`, { body, headers })
  }

  failed(jobId: string, body: object = FAILURE, headers: Record<string, string> = {}): Promise<Answer> {
    return this.call(`${jobId}/failed`, { body, headers })
  }
}

export async function submitZpe(http: TestApp, body: object = JOB, call: Call = {}): Promise<string> {
  const answer = await http.call('POST', '/calc/zpe/jobs', { body, ...call })
  if (answer.status !== 200) throw new Error(`A job was answered with ${answer.status}: ${answer.text}`)
  return (answer.body as { job_id: string }).job_id
}

/** Lets time pass for one job by moving all its times back. */
export async function ageJob(store: Store, jobId: string, ms: number): Promise<void> {
  const columns = ['run_at', 'created_at', 'assigned_at', 'lease_expires_at', 'started_at', 'finished_at']
  const changes = columns.map((column) => `${column} = ${column} - ${ms}`)
  await sql(store, `UPDATE ichido.runs SET ${changes.join()} WHERE job_id = $1`, jobId)
  await store.write(promoteDue(100, []))
}
