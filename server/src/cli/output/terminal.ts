import { randomUUID } from 'node:crypto'
import { styleText } from 'node:util'
import { forTerminal, jsonForTerminal, lineForTerminal } from '@ichido/sdk/terminal'

/**
 * All output of the command line passes through here and loses its control characters, because names, errors and JSON come
 * from workers and users. The command line's own styles are marked in the text and become escape codes after that. The mark
 * is random for each process, so foreign text cannot contain it.
 */

type Style = Parameters<typeof styleText>[0]

const STYLE_MARK = `\uf8ff${randomUUID()}`
const ESCAPE = '\u001b['

/** Prints data to stdout. */
export function out(text: string): void {
  outText(`${text}\n`)
}

/** Prints data that has its own line ends. */
export function outText(text: string): void {
  process.stdout.write(shown(text))
}

export function outJson(value: unknown, indent = 0): void {
  process.stdout.write(`${jsonForTerminal(JSON.stringify(value, null, indent))}\n`)
}

/** Prints a line for people to stderr. */
export function say(text: string): void {
  sayText(`${text}\n`)
}

export function sayText(text: string): void {
  process.stderr.write(shown(text))
}

function shown(text: string): string {
  return forTerminal(text).replaceAll(STYLE_MARK, ESCAPE)
}

/** A pipe gets colours only if FORCE_COLOR asks for them, which also overrides NO_COLOR and TERM, as in Node itself. */
function takesColour({ isTTY }: Pick<NodeJS.WriteStream, 'isTTY'>): boolean {
  const { FORCE_COLOR, NO_COLOR, TERM } = process.env
  if (FORCE_COLOR) return !['0', 'false'].includes(FORCE_COLOR)
  return isTTY === true && !NO_COLOR && TERM !== 'dumb'
}

/** Colours the text if the stream takes colours. */
export function paint(style: Style, text: string, stream: NodeJS.WriteStream = process.stderr): string {
  if (!takesColour(stream)) return text
  return styleText(style, forTerminal(text), { validateStream: false }).replaceAll(ESCAPE, STYLE_MARK)
}

const CLEAR_BELOW = '\u001b[H\u001b[J'
/** The height of a terminal that does not report it. */
const ROWS = 24

/** Replaces the contents of the terminal, as many lines as it has. */
export function redraw(text: string): void {
  const lines = text.split('\n').slice(0, (process.stdout.rows || ROWS) - 1)
  process.stdout.write(`${CLEAR_BELOW}${shown(lines.join('\n'))}\n`)
}

/** `ichido jobs list | head -1` closes stdout early, which is not a failure. */
export function endQuietlyOnClosedPipe(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    process.exit(0)
  })
}

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']
const REDRAW_MS = 100
/** The width of a terminal that does not report it. */
const COLUMNS = 80

/** A line at the bottom of the terminal that changes; a pipe gets only the lines of `say`. */
export class LiveLine {
  readonly #stream = process.stderr
  readonly #text: () => string
  #timer: NodeJS.Timeout | undefined
  #frame = 0

  constructor(text: () => string) {
    this.#text = text
    if (!this.#stream.isTTY) return
    this.draw()
    this.#timer = setInterval(() => this.draw(), REDRAW_MS)
    this.#timer.unref()
  }

  /** Redraws the line; call it from work that blocks timers. */
  draw(): void {
    if (!this.#stream.isTTY) return
    const frame = FRAMES[this.#frame++ % FRAMES.length]
    const line = `${frame} ${lineForTerminal(this.#text())}`.slice(0, (this.#stream.columns || COLUMNS) - 1)
    this.#stream.write(`\r\u001b[2K${line}`)
  }

  /** Prints a line above the live line. */
  say(text: string): void {
    if (this.#stream.isTTY) this.#stream.write('\r\u001b[2K')
    say(text)
    if (this.#timer !== undefined) this.draw()
  }

  end(): void {
    clearInterval(this.#timer)
    this.#timer = undefined
    if (this.#stream.isTTY) this.#stream.write('\r\u001b[2K')
  }
}
