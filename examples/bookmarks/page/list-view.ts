import { element } from './dom.ts'
import type { Entry } from './entry.ts'
import { type Actions, Line } from './line.ts'

/** The list in the document. A line that stays keeps its element, and so its focus. */
export class ListView {
  readonly #actions: Actions
  readonly #list = element('list')
  readonly #lines = new Map<string, Line>()
  #before = new Map<string, string>()

  constructor(actions: Actions) {
    this.#actions = actions
  }

  show(entries: readonly Entry[]): void {
    const ids = new Set(entries.map(({ id }) => id))
    for (const [id, line] of this.#lines) {
      if (ids.has(id)) continue
      line.element.remove()
      this.#lines.delete(id)
    }
    entries.forEach((entry, index) => {
      const line = this.#lines.get(entry.id) ?? new Line(entry.id, this.#actions)
      this.#lines.set(entry.id, line)
      line.show(entry)
      const there = this.#list.children[index]
      if (there !== line.element) this.#list.insertBefore(line.element, there ?? null)
    })
    this.#tell(entries)
  }

  /** Tells screen readers which bookmarks have ended since the last time. */
  #tell(entries: readonly Entry[]): void {
    const ended = entries.filter(({ id, state: { status } }) => {
      const before = this.#before.get(id)
      return before !== undefined && before !== status && (status === 'done' || status === 'failed')
    })
    if (ended.length > 0) element('said').textContent = ended.map(({ title, label }) => `${title}: ${label}`).join('. ')
    this.#before = new Map(entries.map(({ id, state }) => [id, state.status]))
  }
}
