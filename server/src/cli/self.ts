import { readFileSync } from 'node:fs'

/** The same depth below the package from `src/cli` as from `dist/cli`. */
const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }

export const VERSION = manifest.version

/** Only a clone runs the sources. */
const fromClone = import.meta.url.endsWith('.ts')

/** A line that people can paste into their shell to run one of our own commands. */
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
