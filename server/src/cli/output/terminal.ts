import { randomUUID } from 'node:crypto'
import { styleText } from 'node:util'
import { forTerminal, jsonForTerminal, lineForTerminal } from '@ichido/sdk/terminal'

/**
 * All that the command line prints passes here, where it loses what a terminal would obey: names, errors and JSON come from
 * workers and users. Styles of our own are marked in the text and become escape codes only after that. Nobody else can write
 * the mark, as it is made anew for each process.
 */

type Style = Parameters<typeof styleText>[0]

const STYLE_MARK = `\uf8ff${randomUUID()}`
const ESCAPE = '\u001b['

/** Data, for the next program or for reading. */
export function out(text: string): void {
  outText(`${text}\n`)
}

/** Data that brings its own ends of lines. */
export function outText(text: string): void {
  process.stdout.write(shown(text))
}

export function outJson(value: unknown, indent = 0): void {
  process.stdout.write(`${jsonForTerminal(JSON.stringify(value, null, indent))}\n`)
}

/** What is meant for people and no part of the answer. */
export function say(text: string): void {
  sayText(`${text}\n`)
}

export function sayText(text: string): void {
  process.stderr.write(shown(text))
}

function shown(text: string): string {
  return forTerminal(text).replaceAll(STYLE_MARK, ESCAPE)
}

/** Coloured only where that stream is a terminal and NO_COLOR is not set. */
export function paint(style: Style, text: string, stream: NodeJS.WriteStream = process.stderr): string {
  if (!stream.isTTY || process.env.NO_COLOR) return text
  return styleText(style, forTerminal(text), { validateStream: false }).replaceAll(ESCAPE, STYLE_MARK)
}

/** `ichido jobs list | head -1` closes our output early, and that is no failure. */
export function endQuietlyOnClosedPipe(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    process.exit(0)
  })
}

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']
const REDRAW_MS = 100
/** Of a terminal that does not say how wide it is. */
const COLUMNS = 80

/** One line at the bottom that changes; on a pipe there is none, and only what `say` says is seen. */
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

  /** Also for work that does not let timers run. */
  draw(): void {
    if (!this.#stream.isTTY) return
    const frame = FRAMES[this.#frame++ % FRAMES.length]
    const line = `${frame} ${lineForTerminal(this.#text())}`.slice(0, (this.#stream.columns || COLUMNS) - 1)
    this.#stream.write(`\r\u001b[2K${line}`)
  }

  /** Puts a line above the live one. */
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
