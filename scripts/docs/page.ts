import { chmodSync, copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { root } from '../boot/fetch-packages.mjs'
import { differenceOfJson, differenceOfText } from './answers.ts'
import type { Block } from './blocks.ts'
import { scriptOf } from './ci.ts'
import { type CommandLine, inTerminal } from './command-line.ts'
import * as gate from './gate.ts'
import { give } from './given.ts'
import { isModule, type PageModules, writeModules } from './modules.ts'
import { type Printed, Shell } from './shell.ts'
import { type Stage, startStage, takeRefusals } from './stage.ts'

/** The fate of a block: it ran, was compared with the output of the block before it, was parsed, or was not run. */
export type Fate = 'ran' | 'compared' | 'parsed' | 'picture' | 'not run'

export interface Told {
  at: string
  fate: Fate
  problem: string | null
}

const DOCS_URL = 'http://127.0.0.1:8001'
const ANSWER_WITHIN_MS = 30_000
const BLOCK_WITHIN_MS = 45_000
const LOOK_AGAIN_MS = 100

/** Runs the blocks of a page in order, on their own stage. */
export async function runPage(folder: string, blocks: readonly Block[], commands: CommandLine): Promise<Told[]> {
  const still = blocks.map((block) => tellStill(block))
  if (still.every((block) => block !== null)) return still
  const page = await Page.begin(folder, blocks, commands)
  const told: Told[] = []
  try {
    for (const [n, block] of blocks.entries()) {
      const answer = blocks[n + 1]?.marks.has('answer') ? blocks[n + 1] : undefined
      if (!block.marks.has('answer')) told.push(...(await page.tell(block, answer)))
      else if (n === 0) throw new Error(`${block.at} answers nothing`)
    }
  } finally {
    for (const { at, problem } of await page.end()) told.push({ at, fate: 'ran', problem })
  }
  return told
}

/** The fate of a block that does not run; null for other blocks. */
function fateOfStill({ language, marks, text }: Block): Fate | null {
  if (marks.has('no-run')) return 'not run'
  if (marks.has('picture')) return 'picture'
  if (language !== 'json' || marks.has('answer')) return null
  JSON.parse(text)
  return 'parsed'
}

function tellStill(block: Block): Told | null {
  try {
    const fate = fateOfStill(block)
    return fate && { at: block.at, fate, problem: null }
  } catch (error) {
    return failed(block, error)
  }
}

function failed({ at }: Block, error: unknown): Told {
  return { at, fate: 'ran', problem: error instanceof Error ? error.message : String(error) }
}

/** Reports a block that hangs. */
async function inTime<T>(block: Promise<T>): Promise<T> {
  const late = new AbortController()
  const timer = sleep(BLOCK_WITHIN_MS, undefined, late).then(() => {
    throw new Error(`Not over after ${BLOCK_WITHIN_MS / 1000} s`)
  })
  try {
    return await Promise.race([block, timer])
  } finally {
    late.abort()
    timer.catch(() => {})
  }
}

class Page {
  readonly #stage: Stage
  readonly #shell: Shell
  readonly #commands: CommandLine
  readonly #modules: PageModules
  readonly #cwd: string
  readonly #imports = new Map<string, Promise<unknown>>()
  readonly #env: NodeJS.ProcessEnv
  #printed = ''

  static async begin(folder: string, blocks: readonly Block[], commands: CommandLine): Promise<Page> {
    const cwd = join(folder, 'clone')
    mkdirSync(cwd, { recursive: true })
    copyFileSync(join(root, 'clients', 'python', 'ichido.py'), join(cwd, 'ichido.py'))
    return new Page(folder, cwd, blocks, commands, await startStage(folder))
  }

  private constructor(folder: string, cwd: string, blocks: readonly Block[], commands: CommandLine, stage: Stage) {
    const { PATH, DATABASE_URL: databaseUrl = '' } = process.env
    this.#stage = stage
    this.#commands = commands
    this.#cwd = cwd
    this.#env = {
      ...{ PATH, HOME: folder, XDG_STATE_HOME: folder, TMPDIR: folder, LANG: 'C.UTF-8', NO_COLOR: '1' },
      ...{ ICHIDO_URL: stage.url, DATA_DIR: stage.dataDir },
      ...{ DOCS_COMMAND_LINE: commands.socket, DOCS_PYTHON: process.env.DOCS_PYTHON },
    }
    process.chdir(cwd)
    this.#modules = writeModules(cwd, blocks, this.#onStage)
    give({ url: stage.url, databaseUrl })
    this.#shell = new Shell(cwd, folder, this.#env)
  }

  readonly #onStage = (text: string): string => text.replaceAll(DOCS_URL, this.#stage.url)

  async tell(block: Block, answer: Block | undefined): Promise<Told[]> {
    const { at } = block
    try {
      const fate = await inTime(this.#carryOut(block, answer))
      const compared = answer ? [{ at: answer.at, fate: 'compared', problem: null } as const] : []
      return [{ at, fate, problem: null }, ...compared]
    } catch (error) {
      return [failed(block, error)]
    }
  }

  async #carryOut(block: Block, answer: Block | undefined): Promise<Fate> {
    const { language, marks } = block
    const file = marks.get('file')
    if (file !== undefined) this.#write(file, block)
    const still = fateOfStill(block)
    if (still !== null) return still
    switch (language) {
      case 'sh':
        if (file === undefined) await this.#inShell(block, block.text, answer)
        return 'ran'
      case 'python':
        if (file === undefined) await this.#inShell(block, `python3 - <<'END'\n${block.text}\nEND\n`, answer)
        return 'ran'
      case 'ts':
      case 'js':
        if (file === undefined) await this.#inModule(block, answer)
        return 'ran'
      case 'yaml':
      case 'groovy':
        await this.#inShell(block, scriptOf(block), answer)
        return 'ran'
      default:
        throw new Error(`Nobody knows how to run ${language || 'a block without a language'}`)
    }
  }

  async #inShell(block: Block, script: string, answer: Block | undefined): Promise<void> {
    const { marks } = block
    if (marks.has('terminal')) return this.#inTerminalOfItsOwn(block.at, this.#onStage(script))
    const deadlineMs = performance.now() + ANSWER_WITHIN_MS
    for (;;) {
      takeRefusals()
      const streams = answer?.language === 'json' ? 'stdout' : 'both'
      const printed = await this.#shell.run(this.#onStage(script), streams)
      const problem = this.#problemOf(block, printed, answer)
      if (problem === null) return
      if (!marks.has('until') || performance.now() > deadlineMs) throw new Error(problem)
      await sleep(LOOK_AGAIN_MS)
    }
  }

  /** Resolves when a command of ours has printed something. Before that, Ctrl-C would end more than the command. */
  async #inTerminalOfItsOwn(at: string, script: string): Promise<void> {
    const talking = this.#commands.talking()
    const terminal = this.#shell.begin(at, script)
    if (!script.includes('npm run -s ichido')) return
    while (!terminal.hasSaid() && this.#commands.talking() === talking) await sleep(LOOK_AGAIN_MS)
  }

  #problemOf({ marks }: Block, { text, failed }: Printed, answer: Block | undefined): string | null {
    const refusals = takeRefusals()
    if (marks.has('fails') !== failed.length > 0) return `failed: ${failed.join(', ') || 'nothing'}\n${text}`
    if (marks.has('refused') !== refusals.length > 0) return `refused: ${refusals.join(', ') || 'nothing'}\n${text}`
    return answer === undefined ? null : this.#differenceTo(answer, text)
  }

  async #inModule(block: Block, answer: Block | undefined): Promise<void> {
    const { path, next } = this.#modules.of(block)
    this.#printed = ''
    gate.open(block.at)
    const print = (_: number, text: string) => {
      this.#printed += text
    }
    const module =
      this.#imports.get(path) ??
      inTerminal(this.#env, print, () => import(pathToFileURL(path).href) as Promise<unknown>)
    this.#imports.set(path, module)
    await (next === undefined ? module : Promise.race([module, gate.reached(next.at)]))
    const problem = answer === undefined ? null : this.#differenceTo(answer, this.#printed)
    if (problem !== null) throw new Error(problem)
  }

  #differenceTo({ language, text: shown }: Block, got: string): string | null {
    const text = got.replaceAll(this.#stage.url, DOCS_URL)
    return language === 'json' ? differenceOfJson(shown, text) : differenceOfText(shown, text)
  }

  #write(file: string, block: Block): void {
    if (isModule(block)) return
    writeFileSync(join(this.#cwd, file), this.#onStage(block.text))
    if (block.language === 'sh') chmodSync(join(this.#cwd, file), 0o755)
  }

  async end(): Promise<{ at: string; problem: string }[]> {
    await this.#commands.interrupt()
    const failed = await this.#shell.end()
    // Stopping is slow, and the next page has its own stage.
    this.#stage.stop().catch((error: unknown) => console.error(error))
    return failed
  }
}
