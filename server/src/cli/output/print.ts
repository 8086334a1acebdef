import { lineForTerminal } from '@ichido/sdk/terminal'
import { clip } from '../../core/json/text.ts'
import { shellWord } from '../self.ts'
import { out, outJson, paint, say } from './terminal.ts'

const ERROR_MAX = 300
const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB']

/** The heads of the columns, and the cell of each item. */
export type Columns<T> = Readonly<Record<string, (item: T) => string | number>>
type Facts = readonly (readonly [name: string, value: string | null])[]

/** Prints a list as JSON, or as a table with a hint about the next page; `none` if the list is empty. */
export function printPage<T>(
  page: { data: readonly T[]; next_cursor?: string | null },
  json: boolean | undefined,
  none: string,
  columns: Columns<T>,
): void {
  if (json) outJson(page)
  else if (page.data.length === 0) say(none)
  else {
    out(table(page.data, columns))
    if (page.next_cursor) say(`There are more: continue with --cursor ${shellWord(page.next_cursor)}`)
  }
}

/** Prints a value as JSON, or as names and values. */
export function printFacts(value: unknown, json: boolean | undefined, pairs: Facts): void {
  if (json) outJson(value)
  else out(facts(pairs))
}

/** Prints a value as JSON, or says a sentence about it. */
export function sayOrJson(value: unknown, json: boolean | undefined, sentence: string): void {
  if (json) outJson(value)
  else say(sentence)
}

/** The colours of states; a canceled job, a detached worker and an aborted operation need no attention. */
const STATE_STYLES: Readonly<Record<string, 'green' | 'red' | 'yellow' | 'cyan' | 'dim'>> = {
  SUCCEEDED: 'green',
  FAILED: 'red',
  TIMED_OUT: 'red',
  CANCELED: 'dim',
  PENDING: 'yellow',
  ORPHANED: 'yellow',
  ASSIGNED: 'cyan',
  RUNNING: 'cyan',
  done: 'green',
  running: 'cyan',
  aborted: 'dim',
  delivered: 'green',
  pending: 'yellow',
  dead: 'red',
  enabled: 'green',
  disabled: 'red',
  online: 'green',
  detached: 'dim',
  unseen: 'yellow',
  revoked: 'red',
}

/** A value in the colour of its state, if its column or name is `state`. */
function paintState(name: string, value: string): string {
  const style = name.toLowerCase() === 'state' ? STATE_STYLES[value.trim()] : undefined
  return style === undefined ? value : paint(style, value, process.stdout)
}

/** Pads all columns but the last. */
export function table<T>(items: readonly T[], columns: Columns<T>): string {
  const head = Object.keys(columns)
  const cells = items.map((item) => Object.values(columns).map((cellOf) => lineForTerminal(String(cellOf(item)))))
  const widths = head.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]?.length ?? 0)))
  const padded = (row: readonly string[]) =>
    row.map((cell, i) => (i === row.length - 1 ? cell : cell.padEnd(widths[i] ?? 0)))
  const line = (row: readonly string[]) =>
    padded(row)
      .map((cell, i) => paintState(head[i] ?? '', cell))
      .join('  ')
  return [paint('bold', padded(head).join('  '), process.stdout), ...cells.map(line)].join('\n')
}

/** A name and its value on each line, without those that are null. */
export function facts(pairs: Facts): string {
  const shown = pairs.filter((pair): pair is [string, string] => pair[1] !== null)
  const width = Math.max(...shown.map(([name]) => name.length))
  return shown
    .map(
      ([name, value]) =>
        `${paint('bold', name.padEnd(width), process.stdout)}  ${paintState(name, lineForTerminal(value))}`,
    )
    .join('\n')
}

/** An error in one line, cut to a readable length. */
export function oneLine(text: string): string {
  return clip(lineForTerminal(text), ERROR_MAX)
}

/** An instant in UTC, without milliseconds. */
export function instant(iso: string | null): string {
  return iso === null ? '-' : iso.replace(/\.\d+Z$/, 'Z')
}

/** A number of bytes for people: `512 bytes`, `1.5 MiB`. */
export function bytesText(bytes: number): string {
  const power = bytes < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${power === 0 ? bytes : (bytes / 1024 ** power).toFixed(1)} ${UNITS[power]}`
}

/** The progress of a transfer, for the live line. */
export function bytesOf(name: string, doneBytes: number, totalBytes: number | null): string {
  return totalBytes === null
    ? `${name}  ${bytesText(doneBytes)}`
    : `${name}  ${bytesText(doneBytes)} of ${bytesText(totalBytes)}`
}
