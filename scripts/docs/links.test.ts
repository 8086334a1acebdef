import { globSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { expect, test } from 'vitest'
import { root } from '../boot/fetch-packages.mjs'

const read = (path: string) => readFileSync(join(root, path), 'utf8')
const pages = globSync(['*.md', 'docs/**/*.md', 'deploy/*.md', '{clients,examples}/*/README.md'], { cwd: root })

/** The anchors that GitHub makes. */
const anchorsOf = (page: string) =>
  [...page.matchAll(/^#+ (.*)$/gm)].map(([, title = '']) =>
    title
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  )

test.for(pages)('the links of %s lead to existing pages and sections', (path) => {
  const links = [...read(path).matchAll(/\]\((?!https?:)([^)\s]*)\)/g)].map(([, link = '']) => link)
  const broken = links.filter((link) => {
    const [file = '', anchor] = link.split('#')
    const target = file === '' ? path : normalize(join(dirname(path), file))
    if (globSync(target, { cwd: root }).length === 0) return true
    return anchor !== undefined && !anchorsOf(read(target)).includes(anchor)
  })
  expect(broken).toEqual([])
})

test('the files in the table of changes exist, and define the names beside them', () => {
  const [, table = ''] = /### Where a change belongs\n([\s\S]*?)\n\*\*/.exec(read('docs/architecture.md')) ?? []
  const named = [...table.matchAll(/`([\w{}.,/-]+(?:\.ts|\.py|\/))`/g)].flatMap(([, path = '']) => alternatives(path))
  const missing = named.filter(
    (path) => globSync([path, `server/src/${path}`, `server/src/**/${path}`], { cwd: root }).length === 0,
  )
  expect(named.length).toBeGreaterThan(100)
  expect(missing).toEqual([])
  const definitions = [...table.matchAll(/`(\w+)` in `([\w./-]+\.ts)`/g)]
  const undefinedNames = definitions.filter(([, name = '', path = '']) => {
    const [file = ''] = globSync([path, `server/src/${path}`], { cwd: root })
    return !new RegExp(`(const|function|class|interface|type) ${name}\\b`).test(read(file))
  })
  expect(definitions.length).toBeGreaterThan(5)
  expect(undefinedNames.map(([text]) => text)).toEqual([])
})

/** `a/{b,c}.ts` as `a/b.ts` and `a/c.ts`. */
function alternatives(path: string): string[] {
  const [, before = '', choices = '', after = ''] = /^(.*?)\{([^{}]*)\}(.*)$/.exec(path) ?? []
  return choices === '' ? [path] : choices.split(',').flatMap((choice) => alternatives(`${before}${choice}${after}`))
}

test('the messages in troubleshooting.md exist in the sources', () => {
  const sources = globSync(['{sdk,server}/src/**/*.ts', 'scripts/boot/*.mjs'], { cwd: root })
    .filter((path) => !path.endsWith('.test.ts'))
    .map(read)
  const rows = read('docs/troubleshooting.md').matchAll(/^\| (?:400 )?`([^`]* [^`]* [^`]*)`/gm)
  const messages = [...rows].map(([, message = '']) => message)
  const unknown = messages.filter((message) => {
    const parts = message.split(/ *…[ .,]*/).filter((part) => part.length > 3)
    return !parts.every((part) => sources.some((source) => source.includes(part)))
  })
  expect(messages.length).toBeGreaterThan(20)
  expect(unknown).toEqual([])
})
