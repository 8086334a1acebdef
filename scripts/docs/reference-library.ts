import { type Declaration, exportsOf } from './declarations.ts'

const ENTRIES = [
  ['ichido', 'The library runs jobs inside an application: [library](library.md).'],
  ['ichido/idempotency', 'The plugin adds `Idempotency-Key` to your own handlers: [idempotency](idempotency.md).'],
  ['@ichido/sdk', 'The client runs in Node and in browsers: [client](client.md).'],
  [
    '@ichido/sdk/outbox',
    'The outbox of a browser keeps submissions until they are delivered: [client](client.md#offline-the-outbox).',
  ],
  ['@ichido/sdk/outbox/node', 'The outbox of a program keeps submissions in a file.'],
] as const

const HEAD = `# Library reference

This page lists the exports of the packages for applications. It is generated from their types. Each section links to the page that explains their use.
`

/** Builds the page from the declarations in a folder. */
export function libraryReference(declarations: string): string {
  const told = new Map<string, string>()
  return [HEAD, ...ENTRIES.map(([entry, about]) => section(entry, about, exportsOf(declarations, entry), told))].join(
    '\n',
  )
}

/** Declarations whose members are options and calls; the members of the others are wire fields and ports. */
const HOVERED = /^(class|interface \w*Options|interface (Settings|Route|Call|Ichido|Idempotency|HandlerContext))\b/
const MEMBER = /^ {2}(?:(?:static|readonly|get) )*(\w+)[?<(:]/

/** Exports, options and calls for which an editor would show no text. */
export function undocumented(declarations: string): string[] {
  return ENTRIES.flatMap(([entry]) =>
    exportsOf(declarations, entry).flatMap(({ name, doc, text }) => {
      const bare = HOVERED.test(text) ? bareMembers(text).map((member) => `${entry} ${name}.${member}`) : []
      return doc === '' ? [`${entry} ${name}`, ...bare] : bare
    }),
  )
}

function bareMembers(text: string): string[] {
  const lines = text.split('\n')
  return lines.flatMap((line, i) => {
    const [, member = 'constructor'] = MEMBER.exec(line) ?? []
    return ['constructor', 'name'].includes(member) || lines[i - 1]?.endsWith('*/') ? [] : [member]
  })
}

/** A declaration of an earlier section is only named. */
function section(entry: string, about: string, found: readonly Declaration[], told: Map<string, string>): string {
  const fresh = found.filter(({ name, text }) => told.get(name) !== text)
  const again = found.filter((declaration) => !fresh.includes(declaration)).map(({ name }) => `\`${name}\``)
  for (const { name, text } of fresh) told.set(name, text)
  return [
    `## ${entry}\n`,
    `${about}\n`,
    ...(again.length > 0 ? [`It also exports these names from above: ${again.join(', ')}.\n`] : []),
    ...fresh.map(({ name, doc, text }) => {
      const words = doc === '' ? [] : [`${doc.replaceAll(/^@example\n([\s\S]*)$/gm, '```ts\n$1\n```')}\n`]
      return [`### ${name}\n`, ...words, `\`\`\`ts\n${text}\n\`\`\`\n`].join('\n')
    }),
  ].join('\n')
}
