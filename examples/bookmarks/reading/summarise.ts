import type { Article } from './extract.ts'

/** A language model can implement this without other changes. Errors are retried, except for `Fatal`. */
export interface Summariser {
  summarise(article: Article, signal: AbortSignal): Promise<string>
}

const SENTENCES_MAX = 3
const LENGTH_MAX = { ja: 160, other: 360 }
/** Further sentences add little, and the limit keeps the running time short. */
const SENTENCES_READ = 400
/** These words are in every text and say nothing about its subject. */
const STOP_WORDS = new Set(
  `a about after all also an and are as at be been but by can could do does for from had has have he her his how i if in into is it its just
  more most no not of on one only or other our out over she so some such than that the their them then there these they this to up was we
  were what when which who will with would you your`.split(/\s+/),
)
const KANA_ONLY = /^[\p{Script=Hiragana}ー]+$/u
/** A closing bracket belongs to the sentence inside it. ICU leaves an opening bracket with the sentence before. */
const JAPANESE_SENTENCE = /[^。！？]+[。！？]*[」』）]*/g
const JAPANESE = /[\p{Script=Hiragana}\p{Script=Katakana}]/gu

/** Chooses the sentences about the main words of the text, in order, without network or model, in most languages. */
export const extractive: Summariser = {
  summarise: async (article) => summarise(article),
}

export function summarise({ title, text, language }: Article): string {
  const locale = localeOf(text, language)
  const found = sentencesOf(text, locale)
  const inTitle = new Set(wordsOf(title, locale))
  const counts = new Map<string, number>()
  const words = found.map((sentence) => wordsOf(sentence, locale))
  for (const word of words.flatMap((of) => [...new Set(of)])) counts.set(word, (counts.get(word) ?? 0) + 1)
  const weigh = (word: string) => Math.log1p(counts.get(word) ?? 0) + (inTitle.has(word) ? 1 : 0)
  const ranked = found
    .map((sentence, index) => {
      const own = words[index] ?? []
      const sum = [...new Set(own)].reduce((total, word) => total + weigh(word), 0)
      // With the square root, neither long sentences nor single words win by length. Early sentences introduce the subject.
      return { sentence, index, score: (sum / Math.sqrt(own.length + 4)) * (1 + 0.4 / (index + 1)) }
    })
    .sort((one, other) => other.score - one.score)
  return joined(ranked, locale)
}

function joined(ranked: { sentence: string; index: number }[], locale: 'ja' | 'other'): string {
  const max = LENGTH_MAX[locale]
  const chosen: typeof ranked = []
  let length = 0
  for (const each of ranked) {
    if (chosen.length === SENTENCES_MAX) break
    if (chosen.length > 0 && length + each.sentence.length > max) continue
    chosen.push(each)
    length += each.sentence.length
  }
  chosen.sort((one, other) => one.index - other.index)
  const text = chosen.map(({ sentence }) => sentence).join(locale === 'ja' ? '' : ' ')
  if (text.length <= max) return text
  const cut = text.slice(0, max - 1)
  return `${cut.isWellFormed() ? cut : cut.slice(0, -1)}…`
}

/** The declared language of a page often comes from a template; kana do not. */
function localeOf(text: string, language: string): 'ja' | 'other' {
  const kana = text.slice(0, 5_000).match(JAPANESE)?.length ?? 0
  return kana > text.slice(0, 5_000).length / 20 || (kana > 0 && /^ja\b/i.test(language)) ? 'ja' : 'other'
}

const sentences = new Intl.Segmenter('en', { granularity: 'sentence' })
const wordSegmenters = {
  ja: new Intl.Segmenter('ja', { granularity: 'word' }),
  other: new Intl.Segmenter('en', { granularity: 'word' }),
}

function sentencesOf(text: string, locale: 'ja' | 'other'): string[] {
  const found = new Set<string>()
  for (const paragraph of text.split('\n\n')) {
    for (const each of locale === 'ja' ? paragraph.matchAll(JAPANESE_SENTENCE) : sentences.segment(paragraph)) {
      const sentence = ('segment' in each ? each.segment : each[0]).trim()
      if (sentence !== '') found.add(sentence)
      if (found.size === SENTENCES_READ) return [...found]
    }
  }
  return [...found]
}

function wordsOf(text: string, locale: 'ja' | 'other'): string[] {
  const found: string[] = []
  for (const { segment, isWordLike } of wordSegmenters[locale].segment(text)) {
    const word = segment.toLowerCase()
    // Particles and endings are written in kana, subjects mostly are not.
    if (isWordLike === true && !STOP_WORDS.has(word) && !KANA_ONLY.test(word)) found.push(word)
  }
  return found
}
