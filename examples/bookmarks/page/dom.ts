type Constructor<T> = new () => T

export function element(id: string): HTMLElement
export function element<T extends HTMLElement>(id: string, type: Constructor<T>): T
export function element(id: string, type: Constructor<HTMLElement> = HTMLElement): HTMLElement {
  const found = document.getElementById(id)
  if (!(found instanceof type)) throw new Error(`There is no #${id}`)
  return found
}

export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  className = '',
  ...children: Node[]
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name)
  made.className = className
  made.append(...children)
  return made
}

/** Screen readers read text again when it is set, even to the same value. */
export function write(into: HTMLElement, text: string): void {
  if (into.textContent !== text) into.textContent = text
}
