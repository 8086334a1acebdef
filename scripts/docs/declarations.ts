// Reads the declarations that the compiler emits. They are regular: the further lines of a statement are indented, or begin
// with a closing bracket.
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { packageEntries } from './packages.ts'

export interface Declaration {
  name: string
  /** The text of its comment. */
  doc: string
  /** Without `export` and `declare`. */
  text: string
}

interface Statement {
  doc: string
  text: string
}

const CONTINUES = /^([\s})\]]|\*\/)/

function statementsOf(file: string): Statement[] {
  const statements: Statement[] = []
  let comment: string[] = []
  let inComment = false
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    const last = statements.at(-1)
    if (line.startsWith('/**')) comment = []
    if (line.startsWith('/**') || inComment) {
      comment.push(line)
      inComment = !line.includes('*/')
    } else if (CONTINUES.test(line) && last !== undefined) last.text += `\n${line}`
    else if (line !== '') {
      statements.push({ doc: wordsOf(comment), text: line })
      comment = []
    }
  }
  return statements
}

function wordsOf(comment: readonly string[]): string {
  return comment
    .map((line) => line.replace(/^ *\/?\*+\/? ?/, '').replace(/ *\*\/$/, ''))
    .join('\n')
    .trim()
}

const DECLARED = /^(export )?(declare )?((?:abstract )?(?:class|function|interface|type|const|enum) ([A-Za-z_$][\w$]*))/

/** The exports of a package entry, in their order. */
export function exportsOf(declarations: string, entry: string): Declaration[] {
  const entries = packageEntries()
  const pathOf = (path: string) => join(declarations, path.replace(/\.ts$/, '.d.ts'))
  const resolve = (from: string, name: string) =>
    name.startsWith('.') ? join(dirname(from), name.replace(/\.ts$/, '.d.ts')) : pathOf(entries.get(name) ?? name)
  const read = (file: string): Declaration[] => {
    const statements = statementsOf(file)
    return statements.flatMap((statement) => {
      const { text } = statement
      const [, all] = /^export \* from '(.*)'/.exec(text) ?? []
      if (all !== undefined) return read(resolve(file, all))
      const [, names, from] = /^export (?:type )?\{([^}]*)\}(?: from '(.*)')?/.exec(text) ?? []
      if (names !== undefined) return from === undefined ? [] : pick(read(resolve(file, from)), names)
      return text.startsWith('export ') ? declared(statement, statements) : []
    })
  }
  return read(pathOf(entries.get(entry) ?? ''))
}

/** The declarations that another file re-exports by name. */
function pick(found: readonly Declaration[], names: string): Declaration[] {
  const wanted = names.split(',').map((name) => name.trim().replace(/^type /, ''))
  return wanted.filter(Boolean).flatMap((name) => found.filter((declaration) => declaration.name === name))
}

/** A declaration, with the unexported types beside it that a reader needs. */
function declared({ doc, text }: Statement, statements: readonly Statement[]): Declaration[] {
  const [, , , , name] = DECLARED.exec(text) ?? []
  if (name === undefined) return []
  const beside = statements.filter((other) => /^(type|interface) /.test(other.text) && uses(text, other))
  return [{ name, doc, text: [text, ...beside.map((other) => other.text)].map(tidy).join('\n') }]
}

function uses(text: string, other: Statement): boolean {
  const [, , , , name = ''] = DECLARED.exec(other.text) ?? []
  return new RegExp(`\\b${name}\\b`).test(text)
}

function tidy(text: string): string {
  return text
    .replace(/^export /, '')
    .replace(/^declare /, '')
    .replaceAll(/^ +#private;\n/gm, '')
    .replaceAll(/^ +private .*\n/gm, '')
    .replaceAll(/^( +)/gm, (spaces) =>
      ' '.repeat(spaces.length % 4 === 0 ? spaces.length / 2 : (spaces.length + 1) / 2),
    )
    .replaceAll(/;$/gm, '')
}
