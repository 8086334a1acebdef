import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type Browser, type Page, chromium as playwright } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { chromium, nodeArgs } from '../../scripts/testing/services.ts'
import { contrasts } from '../../server/src/testing/store/contrasts.ts'

/** The first run downloads a browser, which may take this long. */
const FETCH_TIMEOUT_MS = 300_000
const STOP_MS = 2_000
/** On busy cores a worker may be killed before it releases its run. The run then waits for its lease and continuation time. */
const WAIT_MS = 60_000
const SEQS = ['vision 10', 'vision 11', 'rule 20', 'rule 21', 'answer 30', 'answer 31', 'reward 40', 'done 51']

let browser: Browser
let page: Page
let folder: string
let example: Example | null = null
let complaints: string[]

beforeAll(async () => {
  browser = await playwright.launch(await chromium())
}, FETCH_TIMEOUT_MS)
afterAll(() => browser.close())
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'scan-pipeline-'))
  page = await browser.newPage({ reducedMotion: 'reduce' })
  complaints = []
  page.on('pageerror', (error) => complaints.push(error.message))
})
afterEach(async () => {
  await page.close()
  await example?.stop()
  rmSync(folder, { recursive: true })
})

/** The command, started like a user does. */
class Example {
  readonly url: string
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  /** The processes that it reported. */
  readonly #said: readonly string[]

  private constructor(child: ChildProcess, ended: Promise<unknown>, said: readonly string[], url: string) {
    this.#child = child
    this.#ended = ended
    this.#said = said
    this.url = url
  }

  static async start(): Promise<Example> {
    const main = join(import.meta.dirname, 'main.ts')
    const child = spawn(process.execPath, [...nodeArgs, main, folder], {
      env: { ...process.env, SCAN_STEP_MS: '800' },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const ended = once(child, 'exit')
    const said: string[] = []
    const url = await new Promise<string>((resolve, reject) => {
      void ended.then(() => reject(new Error(said.join('\n'))))
      createInterface(child.stdout).on('line', (line) => {
        said.push(line)
        const found = /^Scan something: (.+)$/.exec(line)?.[1]
        if (found !== undefined) resolve(found)
      })
    })
    return new Example(child, ended, said, url)
  }

  /** Sends Ctrl-C. */
  async stop(): Promise<{ code: number | null; ms: number; left: number[] }> {
    const beganMs = performance.now()
    this.#child.kill('SIGINT')
    await this.#ended
    const pids = this.#said.flatMap((line) => /: process (\d+)$/.exec(line)?.[1] ?? []).map(Number)
    return { code: this.#child.exitCode, ms: performance.now() - beganMs, left: pids.filter(isAlive) }
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** The events that the page shows, one per line. */
const log = () =>
  page.locator('#log tr').evaluateAll((rows) =>
    rows.map((row) => {
      const [cursor = '', stage = '', seq = ''] = [...row.children].map((cell) => cell.textContent)
      return { cursor: Number(cursor), event: `${stage} ${seq}` }
    }),
  )
const told = async () => (await log()).map(({ event }) => event).filter((event) => !event.startsWith('run '))
const has = (stage: string) =>
  page
    .locator('#log td', { hasText: new RegExp(`^${stage}$`) })
    .first()
    .waitFor()
const live = (state: string) => page.locator(`#live[data-live="${state}"]`).waitFor({ timeout: WAIT_MS })

async function expectUnfinished(): Promise<void> {
  const events = await told()
  expect(events).toEqual(SEQS.slice(0, Math.min(events.length, SEQS.length - 1)))
}

async function expectWhole(): Promise<void> {
  const shown = await log()
  expect(await told()).toEqual(SEQS)
  expect(shown.map(({ cursor }) => cursor)).toEqual(shown.map((_, index) => index + 1))
  expect(await page.locator('#tally').textContent()).toBe(`${shown.length} events, 0 missing, 0 repeated`)
  const stages = page.locator('#stages > li[data-state="done"]')
  expect(await stages.locator('h3').allTextContents()).toEqual(['Vision', 'Rule', 'Answer', 'Reward', 'Done'])
}

test(
  'a scan is shown in stages across a reload, a killed server and a full restart',
  async () => {
    example = await Example.start()
    await page.goto(example.url)
    await page.getByRole('button', { name: 'Scan something' }).click()

    await has('vision')
    await expectUnfinished()
    await page.reload()
    await has('rule')

    await expectUnfinished()
    await page.getByRole('button', { name: 'Kill the server' }).click()
    await live('waiting')
    await live('on')

    const first = await example.stop()
    expect(first).toMatchObject({ code: 0, left: [] })
    expect(first.ms).toBeLessThan(STOP_MS)
    await live('waiting')
    await expectUnfinished()

    example = await Example.start()
    await live('done')
    await expectWhole()
    await page.reload()
    await live('done')
    await expectWhole()
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      expect((await page.evaluate(contrasts)).filter(({ ratio }) => ratio < 4.5)).toEqual([])
    }
    expect(complaints).toEqual([])
  },
  2 * WAIT_MS,
)
