import { lineForTerminal } from '@ichido/sdk/terminal'
import { clip } from '../../core/json/text.ts'
import { paint } from './terminal.ts'

/** Columns wide enough for what stands in them; the last one is left as it is. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = rows.map((row) => row.map(lineForTerminal))
  const widths = head.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]?.length ?? 0)))
  const line = (row: readonly string[]) =>
    row.map((cell, i) => (i === row.length - 1 ? cell : cell.padEnd(widths[i] ?? 0))).join('  ')
  return [paint('bold', line(head), process.stdout), ...cells.map(line)].join('\n')
}

/** A name and its value on each line. */
export function facts(pairs: readonly (readonly [name: string, value: string | null])[]): string {
  const shown = pairs.filter((pair): pair is [string, string] => pair[1] !== null)
  const width = Math.max(...shown.map(([name]) => name.length))
  return shown
    .map(([name, value]) => `${paint('bold', name.padEnd(width), process.stdout)}  ${lineForTerminal(value)}`)
    .join('\n')
}

const ERROR_MAX = 300

/** What an error says, in one line, and not longer than that helps. */
export function oneLine(text: string): string {
  return clip(lineForTerminal(text), ERROR_MAX)
}

/** An instant without the milliseconds, in UTC: the same on every machine that looks at it. */
export function instant(iso: string | null): string {
  return iso === null ? '-' : iso.replace(/\.\d+Z$/, 'Z')
}
