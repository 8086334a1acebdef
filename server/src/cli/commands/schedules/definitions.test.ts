import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { EXIT, report } from '../../output/exit.ts'
import { type Ended, killAll, ichido as run, type Serving, serve } from '../../testing/cli.ts'
import { addDefinitions } from './definitions.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-definitions-test-'))
let server: Serving

beforeAll(async () => {
  server = await serve({ DATA_DIR: folder })
  vi.stubEnv('ICHIDO_URL', server.url)
})

afterAll(async () => {
  vi.unstubAllEnvs()
  await killAll()
  rmSync(folder, { recursive: true, force: true })
})

/** In this process: one of its own takes half a second of CPU. */
async function ichido(...argv: string[]): Promise<Ended> {
  const said = { stdout: '', stderr: '' }
  const spies = (['stdout', 'stderr'] as const).map((stream) =>
    vi.spyOn(process[stream], 'write').mockImplementation((text) => {
      said[stream] += text
      return true
    }),
  )
  const program = new Command('ichido').exitOverride()
  addDefinitions(program)
  try {
    await program.parseAsync(['definitions', ...argv], { from: 'user' })
    return { code: EXIT.done, ...said }
  } catch (error) {
    const code = report(error)
    return { code, ...said }
  } finally {
    for (const spy of spies) spy.mockRestore()
  }
}

async function json(...argv: string[]) {
  const { code, stdout, stderr } = await ichido(...argv, '--json')
  if (code !== EXIT.done) throw new Error(`${argv.join(' ')} ended with ${code}: ${stderr}`)
  return JSON.parse(stdout)
}

describe('definitions', () => {
  test('are created, listed, shown, changed and deleted', async () => {
    const flags = ['--kind', 'report', '-p', '{"a":1}', '-l', 'env=prod', '--cron', '30 2 * * *']
    const made = await ichido('create', 'nightly', ...flags, '--time-zone', 'Europe/Berlin', '--jitter', '5m')
    expect(made).toMatchObject({ code: 0, stderr: expect.stringContaining('definitions ticks nightly') })
    const listed = await ichido('list')
    const shown = await json('show', 'nightly')
    const ticks = await json('ticks', 'nightly', '--limit', '3')
    const taken = await ichido('create', 'nightly', '--kind', 'other')
    const wrong = await ichido('create', 'never', '--kind', 'report', '--cron', '0 0 30 2 *')
    expect(listed.stdout).toMatch(/nightly +report +default +\d{4}-\S+Z +- +30 2 \* \* \* Europe\/Berlin/)
    expect(shown).toMatchObject({
      payload: { a: 1 },
      labels: { env: 'prod' },
      schedule: { cron: '30 2 * * *', time_zone: 'Europe/Berlin', jitter_seconds: 300 },
    })
    expect(ticks.data).toHaveLength(3)
    expect(taken).toMatchObject({ code: 1, stderr: expect.stringContaining('DEFINITION_EXISTS') })
    expect(taken.stderr).toContain('definitions update NAME')
    expect(wrong).toMatchObject({ code: 2, stderr: expect.stringContaining('schedule.cron') })

    const file = join(folder, 'nightly.json')
    writeFileSync(file, JSON.stringify(shown))
    expect(
      await json('update', 'nightly', '--overlap', 'skip', '--max-attempts', '2', '--backoff-base', '5s'),
    ).toMatchObject({
      version: 2,
      max_attempts: 2,
      backoff: { base_seconds: 5 },
      payload: { a: 1 },
      schedule: { ...shown.schedule, overlap: 'skip' },
    })
    const stale = await ichido('update', 'nightly', '--file', file)
    expect(stale, 'the file was printed before the change').toMatchObject({ code: 1, stdout: '' })
    expect(stale.stderr).toContain('VERSION_CONFLICT')
    const back = await json('update', 'nightly', '--file', file, '--if-version', '2', '--no-schedule')
    expect(back).toMatchObject({ version: 3, max_attempts: null, schedule: null })

    expect((await ichido('delete', 'nightly')).stderr).toBe('The definition nightly is deleted.\n')
    expect((await ichido('show', 'nightly')).stderr).toContain('NOT_FOUND')
  })

  test('are paused, resumed, run, backfilled, and show their ticks', async () => {
    await json('create', 'yearly', '--kind', 'report', '--cron', '0 0 1 1 *')
    expect((await ichido('pause', 'yearly')).stdout).toMatch(/paused +since .*\nnext tick +-\n/)
    expect((await ichido('ticks', 'yearly')).stderr).toMatch(/^It has been paused since .* definitions resume yearly/)
    expect(await json('resume', 'yearly')).toMatchObject({ paused: false, version: 3 })
    const range = ['--from', '2021-06-01T00:00:00Z', '--to', '2024-06-01T00:00:00Z']
    const { job_id } = await json('run', 'yearly', '--key', 'a"b\\c')
    const again = await json('run', 'yearly', '--key', 'a"b\\c')
    const counted = await ichido('backfill', 'yearly', ...range, '--dry-run')
    expect(again.job_id).toBe(job_id)
    expect(counted.stderr).toBe('3 of 3 ticks would be made.\n')
    expect(await json('backfill', 'yearly', ...range)).toMatchObject({ state: 'done', made: 3 })
    const ledger = await ichido(
      'occurrences',
      'yearly',
      '--from',
      '2021-01-01T00:00:00Z',
      '--to',
      '2025-01-01T00:00:00Z',
    )
    const backfills = await ichido('backfills', 'yearly')
    for (const year of [2022, 2023, 2024])
      expect(ledger.stdout).toMatch(new RegExp(`${year}-01-01T00:00:00Z +job +backfill`))
    expect(backfills.stdout).toContain('3 of 3 ticks made')
    const wide = await ichido('backfill', 'yearly', '--from', '2021-06-01T00:00:00Z', '--to', 'now', '--dry-run')
    expect(wide.stderr).toMatch(/^\d of \d ticks would be made, 3 made before\.\n$/)
    const [{ job_id: ticked }] = (await json('occurrences', 'yearly', '--to', '2024-06-01T00:00:00Z')).data
    const job = await run(['jobs', 'show', ticked], { ICHIDO_URL: server.url })
    expect(job.stdout).toMatch(/definition +yearly\ntick +2024-01-01T00:00:00Z\n/)
  })

  test('preview shows the ticks of a rule that is not stored', async () => {
    const spring = ['--time-zone', 'America/New_York', '--starts-at', '2031-03-09T00:00:00-05:00', '--limit', '1']
    const shown = await ichido('preview', '30 2 * * *', ...spring)
    const wrong = await ichido('preview', '* * *', '--json')
    expect(shown.stdout).toMatch(/2031-03-09T07:00:00Z +2031-03-09T03:00:00-04:00\n$/)
    expect(wrong).toMatchObject({ code: 2, stdout: '', stderr: expect.stringContaining('schedule.cron must have 5') })
  })

  test('is a command of the program', async () => {
    const { code, stdout } = await run(['definitions', 'list'], { ICHIDO_URL: server.url })
    expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringContaining('yearly') })
  })

  test('a usage error names the option', async () => {
    const key = await ichido('run', 'x', '--key', 'ä')
    const file = await ichido('create', 'x', '--file', join(folder, 'none'))
    const choice = await ichido('create', 'x', '--catch-up', 'some')
    const local = await ichido('create', 'x', '--starts-at', '2031-03-09T00:00:00')
    expect(key).toMatchObject({ code: 2, stderr: expect.stringContaining('--key') })
    expect(file).toMatchObject({ code: 2, stderr: expect.stringContaining('--file') })
    expect(local.stderr).toMatch(/--starts-at.*2026-11-15T22:00:00Z/s)
    expect(choice).toMatchObject({ code: 2, stderr: expect.stringContaining('--catch-up') })
  })
})
