import { readFileSync } from 'node:fs'

/** `src/cli` and `dist/cli` have the same depth below the package. */
const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }

export const VERSION = manifest.version

/** A clone runs the sources. */
const fromClone = import.meta.url.endsWith('.ts')

/** A command line of Ichido that can be pasted into a shell. */
export function commandLine(rest: string, env: Readonly<Record<string, string>> = {}): string {
  const settings = Object.entries(env).map(([name, value]) => `${name}=${shellWord(value)} `)
  return `${settings.join('')}${fromClone ? 'npm run -s ichido --' : 'npx @ichido/server'} ${rest}`
}

export function startLine(): string {
  return fromClone ? 'npm start' : 'npx @ichido/server serve --local-worker'
}

export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}
