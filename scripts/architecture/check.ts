import { dirname, join } from 'node:path/posix'
import { type Facts, readFacts } from './facts.ts'
import {
  FILES_PER_FOLDER_MAX,
  IMPURE_GLOBALS,
  INJECTED,
  isSql,
  isTest,
  LIBRARY,
  LIBRARY_MAY_USE,
  PURE,
  PURE_MAY_USE,
  ROOMS,
  SERVER_ONLY,
  STORE_ROOM,
  WORLD_GLOBALS,
  WORLD_MEMBERS,
  WORLD_MODULES,
  WORLDS,
} from './rules.ts'

/** File paths from the repository's root, with their text. */
export type Sources = Map<string, string>
/** Package names with their file: `@ichido/sdk/protocol` → `sdk/src/protocol/index.ts`. */
export type Entries = Map<string, string>

/** Every breach of the rules, as one sentence each. */
export function breaches(sources: Sources, entries: Entries): string[] {
  const files = new Map(
    [...sources].filter(([path]) => !isTest(path)).map(([path, text]) => [path, readFacts(path, text)]),
  )
  if (files.size === 0) return ['There are no files to check.']
  const graph = new Map([...files].map(([path, facts]) => [path, ownImports(path, facts, entries)]))
  return [
    ...[...graph].flatMap(([path, targets]) => directionBreaches(path, targets)),
    ...cycles(graph),
    ...crowdedFolders([...files.keys()]),
    ...[...files].flatMap(([path, facts]) => [...impurities(path, facts), ...worldUses(path, facts)]),
  ]
}

/** Everything that the library's package would need beyond the allowed files and packages, with the import chain to it. */
export function libraryBreaches(sources: Sources, entries: Entries): string[] {
  const found: string[] = []
  const done = new Set<string>()
  const walk = (path: string, trail: readonly string[]): void => {
    if (done.has(path)) return
    done.add(path)
    const text = sources.get(path)
    const way = [...trail, path]
    const tell = (what: string, by: readonly string[]) => found.push(`The library reaches ${what}: ${by.join(' → ')}.`)
    if (text === undefined) return
    if (SERVER_ONLY.some((prefix) => path.startsWith(prefix))) tell(path, trail)
    const facts = readFacts(path, text)
    for (const { from } of facts.imports) {
      const isPackage = !from.startsWith('.') && !from.startsWith('node:') && !entries.has(from)
      if (isPackage && !LIBRARY_MAY_USE.some((name) => from === name || from.startsWith(`${name}/`))) tell(from, way)
    }
    for (const target of ownImports(path, facts, entries)) walk(target, way)
  }
  for (const entry of LIBRARY) walk(entry, [])
  const missing = LIBRARY.filter((entry) => !sources.has(entry))
  return [...missing.map((entry) => `${entry} is missing.`), ...found.sort()]
}

function ownImports(path: string, { imports }: Facts, entries: Entries): string[] {
  const targets = imports.map(({ from }) => (from.startsWith('.') ? join(dirname(path), from) : entries.get(from)))
  return [...new Set(targets.filter((target) => target !== undefined))]
}

function directionBreaches(path: string, targets: string[]): string[] {
  const room = ROOMS.find(({ files }) => path.startsWith(files))
  if (!room) return [`${path} belongs to no room of the rule table.`]
  const reachesSql = (target: string) => isSql(target) && !path.startsWith(STORE_ROOM)
  const allowed = (target: string) =>
    !isTest(target) && !reachesSql(target) && room.mayImport.some((prefix) => target.startsWith(prefix))
  return targets.filter((target) => !allowed(target)).map((target) => `${path} may not import ${target}.`)
}

function crowdedFolders(paths: string[]): string[] {
  const counts = Map.groupBy(paths, (path) => dirname(path))
  return [...counts]
    .filter(([, { length }]) => length > FILES_PER_FOLDER_MAX)
    .map(([folder, { length }]) => `${folder} has ${length} files; at most ${FILES_PER_FOLDER_MAX} make a room.`)
}

/** Depth first. Each file is visited once, so each cycle is reported once, though perhaps not every path around it. */
function cycles(graph: Map<string, string[]>): string[] {
  const found: string[] = []
  const done = new Set<string>()
  const walk = (path: string, trail: string[]): void => {
    const at = trail.indexOf(path)
    if (at >= 0) found.push(`Import cycle: ${[...trail.slice(at), path].join(' → ')}.`)
    if (at >= 0 || done.has(path)) return
    for (const target of graph.get(path) ?? []) walk(target, [...trail, path])
    done.add(path)
  }
  for (const path of graph.keys()) walk(path, [])
  return found
}

function impurities(path: string, facts: Facts): string[] {
  if (!PURE.some((prefix) => path.startsWith(prefix))) return []
  const outside = facts.imports.filter(({ from }) => !from.startsWith('.') && !from.startsWith('@ichido/'))
  const refused = outside.filter(({ from, names }) => {
    const allowed = PURE_MAY_USE[from]
    return allowed !== 'all' && !(allowed && names.every((name) => allowed.includes(name)))
  })
  return [
    ...refused.map(({ from, names }) => `${path} is pure and may not use ${names.join(', ')} of ${from}.`),
    ...IMPURE_GLOBALS.filter((name) => facts.identifiers.has(name)).map((name) => `${path} is pure and uses ${name}.`),
    ...(facts.awaits ? [`${path} is pure and awaits.`] : []),
  ]
}

function worldUses(path: string, facts: Facts): string[] {
  if (WORLDS.includes(path) || !INJECTED.some((prefix) => path.startsWith(prefix))) return []
  const modules = facts.imports.filter(({ from }) => WORLD_MODULES.includes(from)).map(({ from }) => from)
  const names = facts.imports.flatMap((one) => one.names).filter((name) => WORLD_GLOBALS.includes(name))
  const uses = [
    ...WORLD_GLOBALS.filter((name) => facts.identifiers.has(name)),
    ...WORLD_MEMBERS.filter((name) => facts.members.has(name)),
    ...modules,
    ...names,
    ...(facts.newDateWithoutArguments ? ['new Date()'] : []),
  ]
  return [...new Set(uses)].map((use) => `${path} uses ${use}; the world is injected.`)
}
