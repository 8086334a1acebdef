/** S4's stages for jobs of this kind. An event that an earlier attempt published is the same event. */
const DEFINITION = {
  kind: 'scan',
  queue: 'scan',
  domain: 'scan',
  stages: 'eco2',
  // Short times, so that viewers soon see the job continue after its worker was killed.
  lease_ttl_seconds: 10,
  continuation_seconds: 10,
  backoff: { base_seconds: 1 },
}

/** The control plane as the page's server sees it. The API token stays here, and a browser gets a stream token for one job. */
export class Api {
  readonly url: string
  readonly #token: string

  constructor(url: string, token: string) {
    this.url = url
    this.#token = token
  }

  async define(): Promise<void> {
    const made = await this.post('/v1/definitions', { name: 'scan', ...DEFINITION })
    if (made.status !== 201 && made.status !== 409) throw new Error(`definition: ${made.status} ${await made.text()}`)
  }

  /** The page creates the key, so a click that is sent again after a lost answer is still one scan. */
  submit(key: string): Promise<Response> {
    return this.post('/v1/definitions/scan/run', undefined, { 'idempotency-key': key })
  }

  streamToken(jobId: string): Promise<Response> {
    return this.post(`/v1/jobs/${encodeURIComponent(jobId)}/stream-token`)
  }

  private post(path: string, body?: object, headers: Record<string, string> = {}): Promise<Response> {
    return fetch(this.url + path, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${this.#token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
  }
}
