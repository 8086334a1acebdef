import { computed, signal } from '@preact/signals'

export const LANGUAGES = { en: 'English', ja: '日本語' } as const
export type Language = keyof typeof LANGUAGES

const STORED = 'ichido.language'

/** The language of the page: the visitor's choice, or the browser's. */
export const language = signal<Language>(initial())

language.subscribe((chosen) => {
  document.documentElement.lang = chosen
})

function initial(): Language {
  const stored = localStorage.getItem(STORED)
  if (stored !== null && stored in LANGUAGES) return stored as Language
  return navigator.languages.some((tag) => tag.toLowerCase().startsWith('ja')) &&
    !navigator.languages[0]?.startsWith('en')
    ? 'ja'
    : 'en'
}

export function chooseLanguage(chosen: Language): void {
  localStorage.setItem(STORED, chosen)
  language.value = chosen
}

/** A sentence, or a function that makes one. */
type Word = string | ((...args: never[]) => string)
/** The same words in another language: texts may differ, functions take the same arguments. */
type Translated<T> = { [K in keyof T]: T[K] extends string ? string : T[K] }

/**
 * The words of a part of the page in both languages. A component that calls the result is drawn again when the language
 * changes. A word that one language lacks does not compile.
 */
export function words<const T extends Record<string, Word>>(en: T, ja: Translated<T>): () => Translated<T> {
  const chosen = computed(() => (language.value === 'ja' ? ja : (en as Translated<T>)))
  return () => chosen.value
}

/** Formats of numbers and instants in the language of the page. */
const formats = computed(() => ({
  number: new Intl.NumberFormat(language.value),
  compact: new Intl.NumberFormat(language.value, { notation: 'compact', maximumFractionDigits: 1 }),
  instant: new Intl.DateTimeFormat(language.value, { dateStyle: 'medium', timeStyle: 'medium' }),
  clock: new Intl.DateTimeFormat(language.value, { timeStyle: 'medium' }),
}))

export const formatNumber = (value: number): string => formats.value.number.format(value)
export const formatCompact = (value: number): string => formats.value.compact.format(value)
export const formatInstant = (iso: string): string => formats.value.instant.format(new Date(iso))
export const formatClock = (iso: string): string => formats.value.clock.format(new Date(iso))

const BYTE_UNITS = ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte'] as const

/** In the unit that gives a short number. */
export function formatBytes(bytes: number): string {
  const power = bytes < 1_000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), BYTE_UNITS.length - 1)
  const unit = BYTE_UNITS[power] ?? 'byte'
  const format = new Intl.NumberFormat(language.value, {
    style: 'unit',
    unit,
    unitDisplay: power === 0 ? 'long' : 'short',
    maximumFractionDigits: 1,
  })
  return format.format(bytes / 1_000 ** power)
}
