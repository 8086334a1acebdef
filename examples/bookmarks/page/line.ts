import { make, write } from './dom.ts'
import type { Entry } from './entry.ts'
import { currentLanguage, say } from './words.ts'

export interface Actions {
  retry(id: string): Promise<void>
  drop(id: string): Promise<void>
}

/** One line of the list. */
export class Line {
  readonly #tile = make('span', 'tile')
  readonly #link = make('a')
  readonly #host = make('span')
  readonly #time = make('time')
  readonly #summary = make('p', 'summary')
  readonly #chip = make('span', 'chip')
  readonly #detail = make('span', 'detail')
  readonly #retry = make('button', 'retry')
  readonly #drop = make('button')
  readonly #status = make('p', 'status', this.#chip, this.#detail)
  readonly #actions = make('p', 'actions', this.#retry, this.#drop)
  readonly element = make(
    'li',
    'item',
    this.#tile,
    make(
      'article',
      '',
      make('h3', '', this.#link),
      make('p', 'about', this.#host, this.#time),
      this.#summary,
      this.#status,
      this.#actions,
    ),
  )

  constructor(id: string, actions: Actions) {
    this.#tile.ariaHidden = 'true'
    this.#link.target = '_blank'
    this.#link.rel = 'noopener noreferrer'
    onClick(this.#retry, () => actions.retry(id))
    onClick(this.#drop, () => actions.drop(id))
  }

  show({ url, title, summary, savedAt, state, label, detail, canDrop }: Entry): void {
    const host = new URL(url).hostname.replace(/^www\./, '')
    this.element.dataset.status = state.status
    this.#link.href = url
    write(this.#link, title)
    this.#link.lang = languageOf(title)
    write(this.#tile, host.charAt(0).toUpperCase())
    this.#tile.style.setProperty('--hue', String(hueOf(host)))
    write(this.#host, host)
    this.#time.dateTime = savedAt.toISOString()
    write(this.#time, savedAt.toLocaleString(currentLanguage(), { dateStyle: 'medium', timeStyle: 'short' }))
    write(this.#summary, summary)
    this.#summary.lang = languageOf(summary)
    this.#summary.hidden = summary === ''
    write(this.#chip, state.errorMessage ?? label)
    write(this.#detail, detail)
    this.#status.hidden = state.status === 'done'
    name(this.#retry, say('retry'), title)
    this.#retry.hidden = !state.canRetry
    name(this.#drop, say('drop'), title)
    this.#drop.hidden = !canDrop
    this.#actions.hidden = this.#retry.hidden && this.#drop.hidden
  }
}

/** Ignores further clicks while the action runs. */
function onClick(button: HTMLButtonElement, act: () => Promise<void>): void {
  button.type = 'button'
  button.addEventListener('click', async () => {
    button.disabled = true
    await act().finally(() => {
      button.disabled = false
    })
  })
}

/** The label must make sense outside of its line. */
function name(button: HTMLButtonElement, word: string, title: string): void {
  write(button, word)
  button.ariaLabel = `${word}: ${title}`
}

/** The language of a page's own words, for screen readers. It may differ from the language of this page. */
const languageOf = (text: string) => (/[\p{Script=Hiragana}\p{Script=Katakana}]/u.test(text) ? 'ja' : 'en')

/** Pages of one site have the same colour. */
const hueOf = (host: string) => [...host].reduce((hue, letter) => (hue * 31 + letter.charCodeAt(0)) % 360, 7)
