/** Runs in the browser: the contrast of each piece of text with its background, as WCAG defines it. */
export function contrasts(): { text: string; ratio: number }[] {
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = 1
  const context = canvas.getContext('2d', { willReadFrequently: true })
  if (context === null) throw new Error('There is no canvas')

  /** The colours on top of each other, as the screen shows them. */
  function luminance(colors: string[]): number {
    if (context === null) return 0
    for (const color of colors) {
      context.fillStyle = color
      context.fillRect(0, 0, 1, 1)
    }
    const [r = 0, g = 0, b = 0] = [...context.getImageData(0, 0, 1, 1).data]
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }

  function backgrounds(element: Element | null): string[] {
    if (element === null) return ['white']
    return [...backgrounds(element.parentElement), getComputedStyle(element).backgroundColor]
  }

  const found: { text: string; ratio: number }[] = []
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode() !== null) {
    const text = texts.currentNode.textContent?.trim() ?? ''
    const element = texts.currentNode.parentElement
    if (text === '' || element === null || !element.checkVisibility({ opacityProperty: true })) continue
    if (element.closest('.unseen, :disabled') !== null) continue
    const behind = backgrounds(element)
    const [one, other] = [luminance(behind), luminance([...behind, getComputedStyle(element).color])]
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)
    found.push({ text, ratio })
  }
  return found
}
