import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from '../boot/fetch-packages.mjs'
import type { Block } from './blocks.ts'
import * as given from './given.ts'

/** The TypeScript of a page as modules: one for all blocks that share names, and one for each block that stands alone. */
export interface PageModules {
  /** The module of a block, and the next block in that module. */
  of(block: Block): { path: string; next: Block | undefined }
  files: string[]
  /** The page line of each line of a module. */
  lines: Map<string, string>
}

export const isModule = ({ language }: Block): boolean => language === 'ts' || language === 'js'

export function writeModules(folder: string, blocks: readonly Block[], rewrite: (text: string) => string): PageModules {
  mkdirSync(folder, { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  const groups = new Map<string, Block[]>()
  for (const block of blocks.filter(isModule)) {
    const name = block.marks.get('file') ?? (isAlone(block) ? `block-${block.at.replace(/.*:/, '')}.ts` : 'page.ts')
    groups.set(join(folder, name), [...(groups.get(join(folder, name)) ?? []), block])
  }
  const lines = new Map<string, string>()
  for (const [path, members] of groups) {
    const isFile = members.some(({ marks }) => marks.has('file'))
    const text = isFile ? members.map(({ text }) => rewrite(text)).join('\n') : moduleOf(members, rewrite)
    writeFileSync(path, text)
    for (const [n, line] of text.split('\n').entries()) {
      const at = /^await begin\('(.*)'\)$/.exec(line)?.[1] ?? (n === 0 ? members[0]?.at : undefined)
      if (at !== undefined) lines.set(`${path}:${n + 1}`, at)
    }
  }
  return {
    files: [...groups.keys()],
    lines,
    of(block) {
      for (const [path, members] of groups) {
        const n = members.indexOf(block)
        if (n >= 0) return { path, next: members[n + 1] }
      }
      throw new Error(`${block.at} is in no module`)
    },
  }
}

const isAlone = ({ marks }: Block) => marks.has('alone') || marks.has('no-run')

function moduleOf(blocks: readonly Block[], rewrite: (text: string) => string): string {
  const imported = new Set<string>()
  const parts = blocks.flatMap(({ at, text }) => [`await begin('${at}')`, withoutRepeated(rewrite(text), imported)])
  const body = parts.join('\n')
  const taken = Object.keys(given).filter((name) => uses(body, name) && !declares(body, name))
  return [
    `import { begin } from '${join(import.meta.dirname, 'gate.ts')}'`,
    ...(taken.length > 0 ? [`import { ${taken.join(', ')} } from '${join(import.meta.dirname, 'given.ts')}'`] : []),
    body,
    'export {}',
  ].join('\n')
}

/** A page may repeat an import, but a module may not. */
function withoutRepeated(text: string, imported: Set<string>): string {
  return text.replaceAll(/^import \{ (.*) \} from (.*)$/gm, (_, names: string, from: string) => {
    const fresh = names.split(', ').filter((name) => !imported.has(name))
    for (const name of fresh) imported.add(name)
    return fresh.length > 0 ? `import { ${fresh.join(', ')} } from ${from}` : ''
  })
}

const uses = (text: string, name: string) => new RegExp(`(?<![.\\w'])${name}\\b(?!['\\w])`).test(text)
const declares = (text: string, name: string) =>
  new RegExp(
    `(?:const|let|class|function) ${name}\\b|^import \\{[^}]*\\b${name}\\b|const [{[][^=]*\\b${name}\\b`,
    'm',
  ).test(text)
