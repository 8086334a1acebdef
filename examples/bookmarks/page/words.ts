const en = {
  name: 'Bookmarks',
  motto: 'Saved once, summed up for you.',
  address: 'Address of a page',
  save: 'Save',
  saved: 'Saved pages',
  none: 'Nothing saved yet. Put the address of a page above, and a short summary of it will appear here.',
  more: 'Show older ones',
  live: 'Live',
  offline: 'Offline',
  elsewhere: 'Save from any page',
  bookmarklet: 'Save the page',
  copy: 'Copy its code',
  copied: 'Copied',
  bookmarkletHint:
    'Drag it to your bookmarks bar. On any page, it opens this one with the address filled in: press Enter to save.',
  shareHint: 'Installed as an app, this page is also among the targets of your phone’s Share.',
  saving: 'Saving',
  savingOffline: 'Kept here, sent when you are online',
  saveFailed: 'Could not be saved',
  processing: 'Processing',
  waiting: 'Waiting for its turn',
  fetch: 'Fetching the page',
  extraction: 'Reading the text',
  llm_processing: 'Summing up',
  retrying: 'Retrying',
  nextAt: 'Next attempt at {time}',
  done: 'Done',
  failed: 'The summary failed',
  retry: 'Retry',
  drop: 'Delete',
  already: 'You have saved this page already.',
  notHeard: 'The server cannot be reached now. Try again in a moment.',
  notAnAddress: 'This is not the address of a page. It begins with http:// or https://.',
  notKept: 'This browser did not keep it: {why}',
}

export type Word = keyof typeof en

const ja: Record<Word, string> = {
  name: 'ブックマーク',
  motto: '一度の保存で、要約まで。',
  address: 'ページのアドレス',
  save: '保存',
  saved: '保存したページ',
  none: 'まだ何も保存されていません。上にページのアドレスを入れると、短い要約がここに表示されます。',
  more: '以前のものを表示',
  live: '接続中',
  offline: 'オフライン',
  elsewhere: 'どのページからでも保存',
  bookmarklet: 'このページを保存',
  copy: 'コードをコピー',
  copied: 'コピーしました',
  bookmarkletHint:
    'ブックマークバーにドラッグしてください。どのページでも、アドレスが入力された状態でこのページが開きます。Enter で保存できます。',
  shareHint: 'アプリとしてインストールすると、スマートフォンの「共有」からも保存できます。',
  saving: '保存中',
  savingOffline: 'この端末に保存済み。オンラインになると送信します',
  saveFailed: '保存に失敗しました',
  processing: '処理中',
  waiting: '順番待ち',
  fetch: 'ページを取得中',
  extraction: '本文を読み取り中',
  llm_processing: '要約中',
  retrying: '再試行中',
  nextAt: '次の試行は {time}',
  done: '完了',
  failed: '要約に失敗しました',
  retry: '再試行',
  drop: '削除',
  already: 'このページは保存済みです。',
  notHeard: 'サーバーに接続できません。しばらくしてからもう一度お試しください。',
  notAnAddress: 'ページのアドレスではありません。http:// または https:// で始まるものを入れてください。',
  notKept: 'このブラウザーに保存できませんでした: {why}',
}

/** Translations of the server's error messages. */
const errorsJa: Record<string, string> = {
  ADDRESS_REFUSED: '公開されていないアドレスのため、取得できません。',
  NOT_A_PAGE: '文章のページではありません。',
  NO_TEXT: '要約できる文章がありません。',
  PAGE_REFUSED: 'ページの取得が拒否されました。',
  PAGE_UNAVAILABLE: 'ページのサーバーが応答できない状態です。',
  PAGE_UNREACHABLE: 'ページに接続できません。',
  PAGE_TIMEOUT: 'ページの応答に時間がかかりすぎています。',
  TOO_MANY_REDIRECTS: 'リダイレクトが多すぎます。',
}

export type Language = 'en' | 'ja'
const WORDS: Record<Language, Record<Word, string>> = { en, ja }
const CHOICE = 'bookmarks-language'

const isLanguage = (text: string | null | undefined): text is Language => text === 'en' || text === 'ja'

/** The chosen language, or the browser's first language that has a translation. */
function preferred(): Language {
  try {
    const chosen = localStorage.getItem(CHOICE)
    if (isLanguage(chosen)) return chosen
  } catch {
    // Storage is blocked.
  }
  return navigator.languages.map((tag) => tag.split('-', 1)[0]).find(isLanguage) ?? 'en'
}

let language = preferred()

export const currentLanguage = (): Language => language

export function choose(chosen: Language): void {
  language = chosen
  try {
    localStorage.setItem(CHOICE, chosen)
  } catch {
    // Storage is blocked or full. The choice lasts until the page is left.
  }
}

export function say(word: Word, values: Record<string, string> = {}): string {
  return WORDS[language][word].replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? '')
}

export const sayError = (code: string, message: string): string => (language === 'ja' && errorsJa[code]) || message

/** Sets all texts of the document in the chosen language. */
export function speak(): void {
  document.documentElement.lang = language
  document.title = say('name')
  for (const element of document.querySelectorAll<HTMLElement>('[data-word]')) {
    const { word = '' } = element.dataset
    if (isWord(word)) element.textContent = say(word)
  }
  for (const button of document.querySelectorAll<HTMLElement>('[data-language]')) {
    button.setAttribute('aria-pressed', String(button.dataset.language === language))
  }
}

const isWord = (word: string): word is Word => Object.hasOwn(en, word)
