import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { until } from '../../../testing/store/store.ts'
import { begin, killAll, ichido as run, ichidoJson as runJson, type Serving, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-events-test-'))
let server: Serving
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  server = await serve({ DATA_DIR: folder })
  env = { ICHIDO_URL: server.url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]) => run(args, env)
const json = (...args: string[]) => runJson(args, env)

test('the events of all jobs are listed by filter, page by page', async () => {
  expect(await ichido('events')).toMatchObject({ code: 0, stdout: '', stderr: 'No events.\n' })
  const a = await json('submit', 'one', '--queue', 'a')
  const b = await json('submit', 'two', '--queue', 'b')
  // The first event of a job is written with its next one.
  for (const { job_id } of [a, b]) await ichido('jobs', 'cancel', job_id)
  const { stdout, stderr } = await ichido('events')
  expect(stdout.match(/^20\S+Z +\S{36} .*$/gm)?.map((line) => line.split(/ {2,}/).slice(1))).toEqual([
    [a.job_id, 'a', 'one', 'PENDING'],
    [a.job_id, 'a', 'one', 'CANCELED'],
    [b.job_id, 'b', 'two', 'PENDING'],
    [b.job_id, 'b', 'two', 'CANCELED'],
  ])
  expect(stderr).toBe('')

  const first = await json('events', '--queue', 'a', '--limit', '1')
  const next = await json('events', '--queue', 'a', '--limit', '1', '--cursor', first.next_cursor)
  expect([...first.data, ...next.data]).toMatchObject([{ data: { state: 'PENDING' } }, { data: { state: 'CANCELED' } }])
  expect((await ichido('events', '--limit', '1')).stderr).toContain('There are more: continue with --cursor ')
  for (const filter of [
    ['--kind', 'two'],
    ['--job', b.job_id],
    ['--domain', 'two'],
    ['--kind', 'two', '--stage', 'run'],
  ]) {
    expect((await json('events', ...filter)).data, filter.join(' ')).toMatchObject([
      { job_id: b.job_id, cursor: 1 },
      { job_id: b.job_id, cursor: 2 },
    ])
  }
})

test('--follow prints the events of a queue from now on, also after a restart of the server', async () => {
  // A follower begins at the end of the list, so it is ready when it has seen one of the jobs that come.
  const following = begin(['events', '--follow', '--queue', 'followed', '--json'], env)
  await until('the first event', async () => {
    const { job_id } = await json('submit', 'first', '--queue', 'followed')
    await ichido('jobs', 'cancel', job_id)
    return following.stdout() !== ''
  })
  expect(JSON.parse(following.stdout().split('\n')[0] ?? '')).toMatchObject({
    kind: 'first',
    data: { state: 'PENDING' },
  })

  const { port } = new URL(server.url)
  await server.stop()
  server = await serve({ DATA_DIR: folder, PORT: port })
  const { job_id } = await json('submit', 'second', '--queue', 'followed')
  const other = await json('submit', 'third', '--queue', 'other')
  for (const id of [other.job_id, job_id]) await ichido('jobs', 'cancel', id)
  const seen = await until('both events of the second job', async () => {
    const events = following
      .stdout()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    return events.filter((event) => event.kind !== 'first').length >= 2 && events
  })
  expect(seen.filter(({ kind }) => kind !== 'first')).toMatchObject([
    { job_id, data: { state: 'PENDING' } },
    { job_id, data: { state: 'CANCELED' } },
  ])
  expect(new Set(seen.map(({ job_id, cursor }) => `${job_id} ${cursor}`)).size).toBe(seen.length)
  following.signal('SIGINT')
  await following.ended
})

test('--follow continues after a cursor, and prints one line for each event', async () => {
  const { next_cursor } = await json('events', '--queue', 'none')
  const { job_id } = await json('submit', 'late', '--queue', 'lines')
  await ichido('jobs', 'cancel', job_id)
  const following = begin(['events', '--follow', '--queue', 'lines', '--cursor', next_cursor], env)
  await until('both lines', async () => following.stdout().endsWith('CANCELED\n'))
  expect(following.stdout()).toMatch(new RegExp(`^(20\\S+Z  ${job_id}  lines  late  (PENDING|CANCELED)\n){2}$`))
  following.signal('SIGINT')
  await following.ended
})
