import { Fatal } from '@ichido/sdk'
import type { FetchedPage } from './fetch-page.ts'
import { tokensOf } from './html-tokens.ts'

/** The readable content of a page. */
export interface Article {
  title: string
  /** Paragraphs, separated by empty lines. */
  text: string
  /** The language that the page declares, such as `ja` or `en-GB`; empty if it declares none. */
  language: string
}

interface Block {
  text: string
  linkLength: number
  isHeading: boolean
  isMain: boolean
}

const TITLE_MAX = 300
const TEXT_MAX = 50_000
/** Minimum length of a main part. A page with less text uses the element for something else. */
const MAIN_MIN = 200
/** A shorter text that is not a sentence is a label, a date or a button. */
const PARAGRAPH_MIN = 40
const LINKS_MAX = 0.5

const INLINE = new Set(
  'a abbr b bdi bdo cite code data dfn em font i kbd mark q rp rt ruby s samp small span strong sub sup time u var wbr'.split(
    ' ',
  ),
)
const HEADINGS = new Set(['h1', 'h2', 'h3', 'h4', 'h5', 'h6'])
/** Elements without an end tag. */
const VOID = new Set('area base br col embed hr img input link meta source track wbr'.split(' '))
/** Elements around the text. `rt` gives the reading of a kanji and would duplicate the word. */
const AROUND = new Set('nav header footer aside form button select dialog menu figcaption rt rp'.split(' '))
const NEVER = new Set(
  'script style noscript template svg math iframe object video audio canvas textarea title head'.split(' '),
)
const MAIN = new Set(['main', 'article'])
const SENTENCE_END = /[.!?。！？」』”"]\s*$/

/** Title and main text. A page without them is not summarised. */
export function extract({ contentType, body }: FetchedPage): Article {
  const type = contentType.split(';', 1)[0]?.trim().toLowerCase() ?? ''
  const source = decode(body, contentType)
  if (type === 'text/plain') return checked({ title: '', text: source.trim().slice(0, TEXT_MAX), language: '' })
  if (!['text/html', 'application/xhtml+xml', ''].includes(type)) {
    throw new Fatal('NOT_A_PAGE', `The address leads to ${type}, which is not a page of text`)
  }
  return checked(extractHtml(source))
}

function checked(article: Article): Article {
  if (article.text === '') throw new Fatal('NO_TEXT', 'The page has no text to summarise')
  return article
}

/** Uses the charset of the answer, then that of the page, then UTF-8. */
function decode(body: Buffer, contentType: string): string {
  const head = body.subarray(0, 2_048).toString('latin1')
  const named = /charset\s*=\s*["']?([\w-]+)/i
  const label = named.exec(contentType)?.[1] ?? named.exec(head)?.[1] ?? 'utf-8'
  try {
    return new TextDecoder(label).decode(body)
  } catch {
    return new TextDecoder().decode(body)
  }
}

export function extractHtml(html: string): Article {
  const { titles, blocks, language, description } = read(html, AROUND)
  const main = blocks.filter(({ isMain }) => isMain)
  const chosen = textOf(main).length >= MAIN_MIN ? main : blocks
  // A page with an unclosed frame seems to consist of the frame only.
  const text = textOf(chosen) || textOf(read(html, new Set()).blocks) || description
  const title = titles.find((found) => found !== '') ?? ''
  return { title: title.slice(0, TITLE_MAX), text: text.slice(0, TEXT_MAX), language }
}

interface Reading {
  /** Best first. */
  titles: string[]
  description: string
  language: string
  blocks: Block[]
}

/** Tracks which of the relevant elements are open, however badly they are nested. */
class OpenElements {
  readonly #depths = new Map<string, number>()
  readonly #around: ReadonlySet<string>

  constructor(around: ReadonlySet<string>) {
    this.#around = around
  }

  /** Whether the text here is for readers. */
  get isRead(): boolean {
    return this.#never + this.#framed === 0
  }
  get isMain(): boolean {
    return this.#main > 0
  }
  get isHeading(): boolean {
    return this.#headings > 0
  }
  #headings = 0
  #never = 0
  #framed = 0
  #main = 0

  has(name: string): boolean {
    return (this.#depths.get(name) ?? 0) > 0
  }

  open(name: string): void {
    this.#add(name, 1)
    // The head ends where the body begins, even without an end tag.
    if (name === 'body' && this.has('head')) this.close('head')
  }

  close(name: string): void {
    if (this.has(name)) this.#add(name, -1)
  }

  #add(name: string, by: 1 | -1): void {
    this.#depths.set(name, (this.#depths.get(name) ?? 0) + by)
    if (NEVER.has(name)) this.#never += by
    if (this.#around.has(name)) this.#framed += by
    if (MAIN.has(name)) this.#main += by
    if (HEADINGS.has(name)) this.#headings += by
  }
}

function read(html: string, around: ReadonlySet<string>): Reading {
  const blocks: Block[] = []
  const open = new OpenElements(around)
  const titles = { shared: '', own: '', heading: '' }
  const found = { description: '', language: '' }
  let block = emptyBlock()
  const endBlock = () => {
    const text = tidy(block.text)
    if (text !== '') blocks.push({ ...block, text })
    block = emptyBlock()
  }
  for (const token of tokensOf(html)) {
    if (token.type === 'text') {
      if (open.has('title') && !open.has('svg')) titles.own ||= tidy(token.text)
      if (!open.isRead) continue
      block.text += token.text
      block.isMain ||= open.isMain
      block.isHeading ||= open.isHeading
      if (open.has('h1')) titles.heading ||= tidy(token.text)
      if (open.has('a')) block.linkLength += tidy(token.text).length
      continue
    }
    const { type, name } = token
    if (!INLINE.has(name)) endBlock()
    if (type === 'close') open.close(name)
    else {
      if (!VOID.has(name)) open.open(name)
      if (name === 'html') found.language ||= token.attributes.get('lang') ?? ''
      if (name === 'meta') noteMeta(token.attributes, titles, found)
    }
  }
  endBlock()
  return { titles: [titles.shared, titles.own, titles.heading], ...found, blocks }
}

function noteMeta(attributes: Map<string, string>, titles: { shared: string }, found: { description: string }): void {
  const key = attributes.get('property') ?? attributes.get('name') ?? ''
  const content = tidy(attributes.get('content') ?? '')
  if (key === 'og:title') titles.shared ||= content
  if (key === 'og:description' || key === 'description') found.description ||= content
}

const emptyBlock = (): Block => ({ text: '', linkLength: 0, isHeading: false, isMain: false })

const tidy = (text: string) => text.replace(/\s+/g, ' ').trim()

function textOf(blocks: readonly Block[]): string {
  const kept = blocks.filter(({ text, linkLength, isHeading }) => {
    if (isHeading || linkLength / text.length > LINKS_MAX) return false
    return text.length >= PARAGRAPH_MIN || SENTENCE_END.test(text)
  })
  return kept.map(({ text }) => text).join('\n\n')
}
