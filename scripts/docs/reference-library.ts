import { type Declaration, exportsOf } from './declarations.ts'

const ENTRIES = [
  ['ichido', 'Jobs inside an application: [library](library.md).'],
  ['ichido/idempotency', '`Idempotency-Key` in front of handlers of your own: [idempotency](idempotency.md).'],
  ['@ichido/sdk', 'The client, in Node and in browsers: [client](client.md).'],
  [
    '@ichido/sdk/outbox',
    'What is kept until it could be delivered, in a browser: [client](client.md#offline-the-outbox).',
  ],
  ['@ichido/sdk/outbox/node', 'The same in a file.'],
] as const

const HEAD = `# Library reference

What the packages export for applications, as declared; made from the types by a program. How to use it is told by the pages that are named.
`

/** The page, from the declarations in a folder. */
export function libraryReference(declarations: string): string {
  const told = new Map<string, string>()
  return [HEAD, ...ENTRIES.map(([entry, about]) => section(entry, about, exportsOf(declarations, entry), told))].join(
    '\n',
  )
}

/** What an earlier section has told is named only. */
function section(entry: string, about: string, found: readonly Declaration[], told: Map<string, string>): string {
  const fresh = found.filter(({ name, text }) => told.get(name) !== text)
  const again = found.filter((declaration) => !fresh.includes(declaration)).map(({ name }) => `\`${name}\``)
  for (const { name, text } of fresh) told.set(name, text)
  return [
    `## ${entry}\n`,
    `${about}\n`,
    ...(again.length > 0 ? [`As above: ${again.join(', ')}.\n`] : []),
    ...fresh.map(({ name, doc, text }) => {
      const words = doc === '' ? [] : [`${doc.replaceAll(/^@example\n([\s\S]*)$/gm, '```ts\n$1\n```')}\n`]
      return [`### ${name}\n`, ...words, `\`\`\`ts\n${text}\n\`\`\`\n`].join('\n')
    }),
  ].join('\n')
}
