// Runs the code blocks of the given pages, and prints the fate of each as JSON.
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { root } from '../boot/fetch-packages.mjs'
import { type Block, blocksOf } from './blocks.ts'
import { startCommandLine } from './command-line.ts'
import { checkModules, emitDeclarations } from './compile.ts'
import { writeModules } from './modules.ts'
import { runPage, type Told } from './page.ts'
import { httpReference, type OpenApi } from './reference-http.ts'
import { libraryReference, undocumented } from './reference-library.ts'
import { startStage } from './stage.ts'

export interface Report {
  told: Told[]
  /** The type errors of the pages' TypeScript. */
  types: string[]
  /** The expected text of the pages that are generated from types. */
  references: Record<string, string>
  /** Exports of the packages without a comment. */
  undocumented: string[]
}

const pages = process.argv.slice(2).map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }))
const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ichido-docs-')))
// The working folder is the same for the commands of all pages.
process.chdir(folder)
try {
  const read = pages.map(({ path, text }, n) => ({ folder: join(folder, `${n}`), blocks: blocksOf(path, text) }))
  const declarations = emitDeclarations(folder)
  const checking = declarations.then((emitted) => checkTypes(read, emitted))
  const commands = await startCommandLine(folder)
  const told: Told[] = []
  for (const page of read) {
    mkdirSync(page.folder)
    if (page.blocks.length > 0) told.push(...(await runPage(page.folder, page.blocks, commands)))
  }
  commands.close()
  const references = {
    'docs/reference-http.md': httpReference(await openApi()),
    'docs/reference-library.md': libraryReference(await declarations),
  }
  const report: Report = { told, types: await checking, references, undocumented: undocumented(await declarations) }
  // Pages leave connections open if they do not show how to close them.
  process.stdout.write(JSON.stringify(report), () => process.exit())
} finally {
  process.chdir(root)
  rmSync(folder, { recursive: true, force: true })
}

async function openApi(): Promise<OpenApi> {
  const stage = await startStage(folder)
  const response = await fetch(`${stage.url}/openapi.json`)
  const document = (await response.json()) as OpenApi
  await stage.stop()
  return document
}

async function checkTypes(read: { blocks: Block[] }[], declarations: string): Promise<string[]> {
  const modules = read.map(({ blocks }, n) => writeModules(join(folder, `types-${n}`), blocks, (text) => text))
  const files = modules.flatMap((page) => page.files)
  const problems = files.length > 0 ? await checkModules(folder, declarations, files) : []
  const lines = new Map(modules.flatMap((page) => [...page.lines]))
  return problems.map((problem) => `${problem} ${where(problem, lines)}`)
}

/** The block that a line of a module belongs to. */
function where(problem: string, lines: ReadonlyMap<string, string>): string {
  const [, path = '', line = ''] = /^(.*?)\((\d+),/.exec(problem) ?? []
  for (let n = Number(line); n > 0; n--) {
    const at = lines.get(`${join(folder, path)}:${n}`)
    if (at !== undefined) return `(${at})`
  }
  return ''
}
