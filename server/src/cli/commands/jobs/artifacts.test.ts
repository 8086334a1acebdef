import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import type { ArtifactShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { TcpProxy } from '../../../../../scripts/testing/proxy.ts'
import { begin, killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-artifacts-test-'))
const newFolder = () => mkdtempSync(join(folder, 'd-'))
const sha256Of = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex')
let env = { ICHIDO_URL: '' }

beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: join(folder, 'data') })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

/** More than one part, and no two alike. */
const LARGE = Buffer.from(Array.from({ length: 9 * 1024 * 128 }, (_, i) => i.toString(16).padStart(8, '0')).join(''))

describe('submit --file', () => {
  test('all files have arrived when the command ends; the same key sends nothing again', async () => {
    const dir = newFolder()
    const [small, large] = [join(dir, 'my notes.txt'), join(dir, 'large.bin')]
    writeFileSync(small, 'hello')
    writeFileSync(large, LARGE)
    const args = ['submit', 'k', '--queue', 'idle', '--key', basename(dir), '--file', small, '--file', large]
    const sent = await run([...args, '--json'], env)
    expect(sent).toMatchObject({ code: 0, stderr: 'Sent my notes.txt (5 bytes)\nSent large.bin (9.0 MiB)\n' })
    const { job_id: jobId } = JSON.parse(sent.stdout)
    expect((await runJson(['jobs', 'show', jobId], env)).waiting_for.reason).toBe('no_worker')
    const { data } = await runJson(['jobs', 'artifacts', jobId], env)
    expect(data).toMatchObject([
      { name: 'my notes.txt', sha256: sha256Of('hello'), size_bytes: 5, state: 'ready', run_id: null },
      { name: 'large.bin', sha256: sha256Of(LARGE), size_bytes: LARGE.length, state: 'ready', run_id: null },
    ])
    expect(await runJson(args, env)).toMatchObject({ job_id: jobId, replayed: true })

    writeFileSync(small, 'other')
    const other = await run(args, env)
    expect(other.code).toBe(1)
    expect(other.stderr).toContain('(IDEMPOTENCY_KEY_REUSED)')
  })

  test('a broken connection costs a part, not the upload', async () => {
    const file = join(newFolder(), 'large.bin')
    writeFileSync(file, LARGE.toReversed())
    const { proxy, url } = await TcpProxy.before(env.ICHIDO_URL)
    onTestFinished(() => proxy.close())
    let bytes = 0
    let cuts = 0
    proxy.rule = ({ direction, data }) => {
      if (direction === 'up') bytes += data.length
      if (cuts === 3 || bytes < (cuts + 1) * 2_500_000) return 'pass'
      cuts++
      return 'cut'
    }
    const args = ['submit', 'k', '--queue', 'idle', '--file', file]
    const { job_id: jobId } = await runJson(args, { ICHIDO_URL: url })
    expect(cuts).toBe(3)
    expect(await runJson(['jobs', 'artifacts', jobId], env)).toMatchObject({ data: [{ state: 'ready' }] })
  })

  test.each([
    { args: ['--file', join(folder, 'gone.txt')], says: 'The file cannot be read: ENOENT' },
    { args: ['--file', folder], says: 'It must be a file.' },
    { args: ['--file', import.meta.filename, '--offline'], says: 'cannot be used with' },
    { args: ['--file', import.meta.filename, '--file', import.meta.filename], says: 'Two of the files are called' },
  ])('$args', async ({ args, says }) => {
    const { code, stdout, stderr } = await run(['submit', 'k', ...args], env)
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toContain(says)
  })
})

describe('jobs artifacts', () => {
  test('lists and saves all files of a job; the newest of a name keeps it', async () => {
    const file = join(newFolder(), 'in.txt')
    writeFileSync(file, 'given')
    const exec = 'tr a-z A-Z < in.txt > outputs/in.txt; cp in.txt outputs/copy.txt'
    const worker = begin(['worker', '--queue', 'files', '--exec', exec, '--state', newFolder()], env)
    const submitted = await run(['submit', 'k', '--queue', 'files', '--file', file, '--wait'], env)
    worker.signal('SIGTERM')
    expect(submitted.code).toBe(0)
    const [, jobId = ''] = /^Job (\S+)$/m.exec(submitted.stderr) ?? []
    const { stdout } = await run(['jobs', 'artifacts', jobId], env)
    expect(stdout).toMatch(/^NAME +BYTES +STATE +RUN +SHA-256$/m)
    expect(stdout).toContain(`  ready  -    ${sha256Of('given')}\n`)
    expect(stdout).toContain(`  ready  1    ${sha256Of('GIVEN')}\n`)

    const save = join(newFolder(), 'made', 'for it')
    const saved = await run(['jobs', 'artifacts', jobId, '--save', save], env)
    expect(saved.code).toBe(0)
    expect(saved.stdout.trim().split('\n').toSorted()).toEqual(
      readdirSync(save)
        .map((name) => join(save, name))
        .toSorted(),
    )
    const texts = Object.fromEntries(readdirSync(save).map((name) => [name, readFileSync(join(save, name), 'utf8')]))
    expect(texts).toMatchObject({ 'in.txt': 'GIVEN', 'copy.txt': 'given' })
    expect(Object.entries(texts).find(([name]) => name.endsWith('-in.txt'))?.[1]).toBe('given')
    expect(Object.keys(texts)).toHaveLength(3)
    const again = await runJson(['jobs', 'artifacts', jobId, '--save', save], env)
    expect(again.data.map(({ path }: { path: string }) => path).toSorted()).toEqual(
      saved.stdout.trim().split('\n').toSorted(),
    )
    await worker.ended
  })

  test('a job without files, and one whose file is missing', async () => {
    const { job_id: none } = await runJson(['submit', 'k', '--queue', 'idle'], env)
    expect(await run(['jobs', 'artifacts', none], env)).toMatchObject({
      code: 0,
      stderr: 'The job has no artifacts.\n',
    })
    const body = JSON.stringify({ kind: 'k', queue: 'idle', artifacts: [{ name: 'late.txt' }] })
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${env.ICHIDO_URL}/v1/jobs`, { method: 'POST', headers, body })
    const { job_id: waiting } = (await answer.json()) as { job_id: string }
    expect((await run(['jobs', 'artifacts', waiting], env)).stdout).toMatch(/^late\.txt +- +awaited +- +-$/m)
    const save = newFolder()
    const saved = await run(['jobs', 'artifacts', waiting, '--save', save], env)
    expect(saved).toMatchObject({ code: 0, stdout: '', stderr: 'late.txt has not arrived yet.\n' })
    expect(readdirSync(save)).toEqual([])
  })

  /** A server that is not to be trusted. */
  async function lying(artifact: Partial<ArtifactShape>, body: string, announced = body.length): Promise<string> {
    const given = { artifact_id: 'a', run_id: null, state: 'ready', sha256: sha256Of('right'), size_bytes: 5 }
    const server = createServer((request, response) => {
      if (request.url?.endsWith('/artifacts')) {
        return response.end(JSON.stringify({ data: [{ ...given, created_at: '', ...artifact }] }))
      }
      response.writeHead(200, { 'content-length': announced })
      return body.length < announced ? response.write(body, () => response.destroy()) : response.end(body)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void server.close())
    await once(server, 'listening')
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  test.each([
    { name: '../evil.txt', says: 'is not a valid file name, so nothing is saved.' },
    { name: join(folder, 'evil.txt'), says: 'is not a valid file name' },
    { name: '..', says: 'is not a valid file name' },
    { name: '.bashrc', says: 'is not a valid file name' },
    { name: 'sub/evil.txt', says: 'is not a valid file name' },
    { name: '..\\evil.txt', says: 'is not a valid file name' },
    { name: 'evil.txt\0', says: 'is not a valid file name' },
    { name: 'a.txt', body: 'wrong', says: 'a.txt was damaged on the way: its SHA-256 does not match.' },
    { name: 'a.txt', body: 'right and more', says: 'a.txt is longer than expected.' },
    { name: 'a.txt', body: 'ri', announced: 5, says: 'a.txt broke off after' },
  ])('$name with $body leaves no file: $says', async ({ name, body = 'right', announced, says }) => {
    const inner = newFolder()
    const save = join(inner, 'save')
    const ICHIDO_URL = await lying({ name }, body, announced)
    const { code, stdout, stderr } = await run(['jobs', 'artifacts', 'x', '--save', save], { ICHIDO_URL })
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr).toContain(says)
    expect(readdirSync(inner)).toEqual(['save'])
    expect(readdirSync(save)).toEqual([])
    expect(readdirSync(folder)).not.toContain('evil.txt')
  })

  test('a link of that name is replaced, and its target stays', async () => {
    const save = newFolder()
    const precious = join(newFolder(), 'precious.txt')
    writeFileSync(precious, 'precious')
    symlinkSync(precious, join(save, 'a.txt'))
    const ICHIDO_URL = await lying({ name: 'a.txt' }, 'right')
    expect(await run(['jobs', 'artifacts', 'x', '--save', save], { ICHIDO_URL })).toMatchObject({ code: 0 })
    expect(readFileSync(join(save, 'a.txt'), 'utf8')).toBe('right')
    expect(readFileSync(precious, 'utf8')).toBe('precious')
  })
})
