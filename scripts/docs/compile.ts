import { execFile } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { root } from '../boot/fetch-packages.mjs'
import { packageEntries } from './packages.ts'

const run = promisify(execFile)
/** The compiler is a Go program. Less frequent garbage collection saves 40 % of its CPU time, and costs 350 MB at most. */
const GOGC = '400'
const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')

/** Resolves with the lines of the compiler's output. */
async function compile(
  folder: string,
  name: string,
  compilerOptions: object,
  files: readonly string[],
): Promise<string[]> {
  const config = join(folder, `tsconfig.${name}.json`)
  const typeRoots = [join(root, 'node_modules', '@types')]
  writeFileSync(
    config,
    JSON.stringify({
      extends: join(root, 'tsconfig.json'),
      compilerOptions: { typeRoots, ...compilerOptions },
      include: [],
      files,
    }),
  )
  const { stdout } = await run(
    process.execPath,
    [compiler, '--project', config, '--pretty', 'false', '--checkers', '1'],
    {
      cwd: folder,
      env: { ...process.env, GOGC },
    },
  ).catch((error: { stdout: string }) => error)
  return stdout.split('\n').filter(Boolean)
}

/**
 * Emits the declarations of the packages' entries and their imports, as published: `sdk/src/index.ts` →
 * `<folder>/declarations/sdk/src/index.d.ts`. Another step checks the sources.
 */
export async function emitDeclarations(folder: string): Promise<string> {
  const outDir = join(folder, 'declarations')
  const options = { noEmit: false, declaration: true, emitDeclarationOnly: true, noCheck: true, rootDir: root, outDir }
  const files = [...packageEntries().values()].map((path) => join(root, path))
  const problems = await compile(folder, 'declarations', options, files)
  if (problems.length > 0) throw new Error(problems.join('\n'))
  return outDir
}

/** Type-checks modules against the declarations. Against the sources it would take five times as long. */
export function checkModules(folder: string, declarations: string, files: readonly string[]): Promise<string[]> {
  const paths = Object.fromEntries(
    [...packageEntries()].map(([name, path]) => [name, [join(declarations, path.replace(/\.ts$/, '.d.ts'))]]),
  )
  const options = {
    customConditions: [],
    rewriteRelativeImportExtensions: false,
    rootDir: '/',
    paths,
    noUnusedLocals: false,
    noUnusedParameters: false,
  }
  return compile(folder, 'modules', options, files)
}
