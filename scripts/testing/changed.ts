import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { dirname, join, matchesGlob } from 'node:path'
import { root } from '../boot/fetch-packages.mjs'
import { packageEntries } from '../docs/packages.ts'

/** The packages and settings that all tests depend on. */
const OF_EVERY_TEST = /^((sdk\/|server\/)?package(-lock)?\.json|tsconfig\.json|vitest\.config\.ts|scripts\/vitest-.*)$/
const TYPE_IMPORT = /^(import type [^'"]*|export type \{[^}]*\} )from '[^']*'/gm
const LITERAL = /'([^'\n]+)'|"([^"\n]+)"|`([^`\n]+)`/g
const GLOB = /^[\w./{},*-]*\*[\w./{},*-]*\.\w+$/

const git = (...args: string[]): string[] =>
  execFileSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 26 })
    .split('\0')
    .filter(Boolean)

/** The files that differ from the merge base of this branch and `since`, committed or not. */
export function changedFiles(since: string): string[] {
  const changed = git('diff', '--name-only', '--no-renames', '-z', '--merge-base', since)
  return [...changed, ...git('ls-files', '--others', '--exclude-standard', '-z')]
}

/** All sources of the working tree, by their path. */
export function readSources(): Map<string, string> {
  const paths = git('ls-files', '--cached', '--others', '--exclude-standard', '--deduplicate', '-z', '*.ts', '*.mjs')
  const deleted = new Set(git('ls-files', '--deleted', '-z'))
  return new Map(
    paths.filter((path) => !deleted.has(path)).map((path) => [path, readFileSync(join(root, path), 'utf8')]),
  )
}

/** The tests that reach a changed file, or null for all of them. */
export function affectedTests(
  changed: readonly string[],
  sources: ReadonlyMap<string, string>,
  packages: ReadonlyMap<string, string> = packageEntries(),
): string[] | null {
  if (changed.some((path) => OF_EVERY_TEST.test(path))) return null
  const modules = Array.from(sources, ([path, text]) => ({ path, names: namesIn(path, text, packages) }))
  const reached = new Set(changed)
  // The loop over a set also visits the elements that are added meanwhile.
  for (const path of reached) {
    const users = modules.filter(({ names }) => names.some((name) => name(path)))
    for (const user of users) reached.add(user.path)
    if (users.length > 0 || path.endsWith('.test.ts')) continue
    const near = testsNear(path, sources)
    if (near === null) return null
    for (const test of near) reached.add(test)
  }
  return [...reached].filter((path) => path.endsWith('.test.ts') && sources.has(path)).toSorted()
}

type Names = (path: string) => boolean

/**
 * A module uses each file that one of its string literals names, relative to the module or to the root: modules,
 * programs that it starts, pages that it reads. Import specifiers are such literals, too.
 */
function namesIn(module: string, text: string, packages: ReadonlyMap<string, string>): Names[] {
  const folder = dirname(module)
  const literals = text.replace(TYPE_IMPORT, '').matchAll(LITERAL)
  const files = new Set<string>()
  const others: Names[] = []
  for (const [, single, double, template = ''] of literals) {
    const literal = single ?? double ?? template.replace(/\$\{.*/, '')
    if (GLOB.test(literal)) others.push((path) => matchesGlob(path, literal))
    else if (/^[\w@.][\w@./-]*\/$/.test(literal)) {
      const places = [join(folder, literal), literal].filter((place) => place !== './' && !place.startsWith('..'))
      others.push((path) => places.some((place) => path.startsWith(place)))
    } else files.add(join(folder, literal)).add(packages.get(literal) ?? literal)
  }
  return [(path) => files.has(path), ...others]
}

/** For a file that no module names: the tests of the closest folder around it that has some. Null stands for the root. */
function testsNear(path: string, sources: ReadonlyMap<string, string>): string[] | null {
  const folder = dirname(path)
  if (folder === '.') return null
  const tests = [...sources.keys()].filter((one) => one.startsWith(`${folder}/`) && one.endsWith('.test.ts'))
  return tests.length > 0 ? tests : testsNear(folder, sources)
}
