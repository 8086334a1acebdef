import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { finish, lease, WORKER } from '../../../testing/http/cloud-worker.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import type { CloudAnswer } from './shapes.ts'

describe.each(ENGINES)('the log of a cloud job on %s', (engine) => {
  let http: TestApp
  let url: string
  beforeAll(async () => {
    http = await testApp(engine)
    url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(() => http.close())

  async function begun(provider: string) {
    const path = `/api/cloud/jobs/submit?provider=${provider}`
    const answer = await http.call('POST', path, { body: { config_name_to_load: 'lora' } })
    const jobId = (answer.body as CloudAnswer).job_id ?? ''
    const { lease_id } = await lease(http, `cloud.${provider}`)
    let n = 0
    const write = (text: string) => http.services.logs.append(WORKER, lease_id, [{ n: n++, stream: 'stdout', text }])
    return { jobId, leaseId: lease_id, write }
  }
  const read = (jobId: string) => http.call('GET', `/api/cloud/jobs/${jobId}/logs`)

  test('is one text that only grows', async () => {
    const { jobId, leaseId, write } = await begun('whole')
    expect(await read(jobId)).toMatchObject({ status: 200, body: { job_id: jobId, logs: '' } })
    let text = ''
    for (const part of ['step 1/2 "quoted" \\ é\n', 'a\tb\r\n']) {
      await write(part)
      text += part
      expect((await read(jobId)).body).toEqual({ job_id: jobId, logs: text })
    }
    await finish(http, leaseId)
    const { headers, body } = await read(jobId)
    expect(headers['content-type']).toContain('application/json')
    expect(body).toEqual({ job_id: jobId, logs: text })
  })

  test.each(['/logs?follow=true', '/logs/stream'])(
    'is followed line by line until the job has ended: %s',
    async (path) => {
      const { jobId, leaseId, write } = await begun(path.includes('stream') ? 'stream' : 'follow')
      await write('one\ntwo\nth')
      const response = await fetch(`${url}/api/cloud/jobs/${jobId}${path}`)
      expect(response.headers.get('content-type')).toContain('text/event-stream')
      const seen: string[] = []
      let open = ''
      const decoder = new TextDecoder()
      for await (const part of response.body ?? []) {
        const blocks = (open + decoder.decode(part, { stream: true })).split('\n\n')
        open = blocks.pop() ?? ''
        seen.push(...blocks.filter((block) => !block.startsWith(':') && !block.startsWith('retry:')))
        // Each step waits until the one before was seen.
        if (seen.length === 2) await write('ree\n10%\r')
        if (seen.at(-1) === 'data: three') await write('\n20%\r30%\nrest')
        if (seen.at(-1) === 'data: 30%') await finish(http, leaseId)
      }
      const lines = ['one', 'two', 'three', '10%', '20%', '30%', 'rest'].map((line) => `data: ${line}`)
      expect(seen).toEqual([...lines, 'event: done\ndata: completed'])
    },
  )

  test('of an ended job is sent at once, and ends', async () => {
    const { jobId, leaseId, write } = await begun('ended')
    await write('said')
    await finish(http, leaseId)
    const { text } = await http.call('GET', `/api/cloud/jobs/${jobId}/logs?follow=true`)
    expect(text.split('\n\n').slice(1)).toEqual(['data: said', 'event: done\ndata: completed', ''])
  })

  test('is visible to readers of the job, and only for cloud jobs', async () => {
    const { jobId } = await begun('own')
    const native = await http.call('POST', '/v1/jobs', { body: { kind: 'work' } })
    expect(await read((native.body as CloudAnswer).job_id ?? '')).toMatchObject({ status: 404 })
    const bob = await http.token('bob', 'submitter')
    for (const path of ['/logs', '/logs?follow=true', '/logs/stream']) {
      const answer = await http.call('GET', `/api/cloud/jobs/${jobId}${path}`, { token: bob })
      expect(answer).toMatchObject({ status: 404, body: { success: false } })
    }
  })
})
