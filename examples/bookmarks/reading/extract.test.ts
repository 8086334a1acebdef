import { expect, test } from 'vitest'
import { extract } from './extract.ts'
import { summarise } from './summarise.ts'

const page = (body: string | Buffer, contentType = 'text/html; charset=utf-8') =>
  extract({ url: 'https://example.org/', contentType, body: Buffer.from(body) })

const AUK = `The great auk was a flightless bird of the North Atlantic that died out in the 19th century. It was about 80 cm tall
  and weighed around 5 kg. Its wings were short, so it could not fly, but it was a powerful swimmer.`
const AUK_END = 'The last pair of great auks was killed off Iceland in June 1844, and nobody has seen one since.'

test('title and text are extracted without the frame of the page', () => {
  const { title, text, language } =
    page(`<!doctype html><html lang="en-GB"><head><title>The Great Auk &amp; its end</title>
    <style>p { color: red }</style><script>document.write("<p>Not this, however long a sentence it may be.</p>")</script></head>
    <body><header>Birds of the world, the page for people who like birds a lot.</header>
    <nav><a href="/">Home</a> <a href="/all">All of the birds that there are, and some more.</a></nav>
    <main><h1>The Great Auk</h1><p>${AUK}</p><p>Share</p>
    <ul><li><a href="/x">See also this page about a bird which you may like as well.</a></ul>
    <p>${AUK_END}</main><footer>All of this belongs to somebody, who reserves all rights to it.</footer>`)
  expect(title).toBe('The Great Auk & its end')
  expect(language).toBe('en-GB')
  expect(text).toBe(`${AUK.replace(/\s+/g, ' ')}\n\n${AUK_END}`)
})

test.each([
  ['unclosed elements', `<title>Auk</title><body><nav><div><p>${AUK}`, 'Auk'],
  ['a missing head and body', `<h1>Auk</h1><p>${AUK}</p>`, 'Auk'],
  ['a head without an end', `<head><meta property="og:title" content="Auk"><title>x</title><body><p>${AUK}`, 'Auk'],
  ['missing markup', AUK, ''],
  ['tags in capitals, attributes without quotes', `<TITLE>Auk</TITLE><P CLASS=a>${AUK}<BR>`, 'Auk'],
])('a page is read despite %s', (_, html, title) => {
  const found = page(html)
  expect(found.title).toBe(title)
  expect(found.text).toContain('flightless bird')
})

test.each([
  '<'.repeat(10_000),
  '<a '.repeat(10_000),
  '<a b="'.repeat(10_000),
  '<p>&#x'.repeat(10_000),
  `<a b${' '.repeat(99_000)}`,
])('malformed input does not hang the reader (%#)', (html) => {
  expect(page(`<p>${AUK}</p>${html}`).text).toContain('flightless bird')
})

test('a document without text is refused for good', () => {
  expect(() => page('%PDF-1.7', 'application/pdf')).toThrow('application/pdf')
  expect(() => page('<div id="app"></div><script src="app.js"></script>')).toThrow('no text')
})

test('old Japanese pages are decoded by their charset, and furigana are left out', () => {
  const text = '海鳥は絶滅した。'
  // 海鳥は絶滅した。 in Shift_JIS.
  const bytes = Buffer.from('8a43 92b9 82cd 90e2 96c5 82b5 82bd 8142'.replaceAll(' ', ''), 'hex')
  const html = Buffer.concat([Buffer.from('<meta charset="shift_jis"><p>'), bytes])
  expect(page(html, 'text/html').text).toBe(text)
  expect(page(html, 'text/html; charset=Shift_JIS').text).toBe(text)
  expect(page('<p><ruby>海鳥<rp>(</rp><rt>うみどり</rt><rp>)</rp></ruby>は絶滅した。').text).toBe(text)
})

test('a summary has the key sentences of the text, in their order', () => {
  const filler = 'You can read more on this elsewhere. Please tell us what you think. We hope to hear from you.'
  const article = page(`<title>The great auk</title><main><p>${filler} ${AUK}</p><p>${AUK_END} ${filler}</p></main>`)
  const summary = summarise(article)
  expect(summary).toMatch(/^The great auk was a flightless bird .+ seen one since\.$/)
  expect(summary).not.toContain('hear from you')
})

test('a Japanese text is summarised, too', () => {
  const article =
    page(`<title>オオウミガラスの絶滅</title><article><p>こんにちは。今日はいい天気ですね。オオウミガラスは北大西洋に生息していた飛べない海鳥で、
    19世紀に絶滅した。「残念です。」と彼は言った。</p><p>羽毛の需要が高く、オオウミガラスは乱獲された。最後のつがいは1844年にアイスランド沖で捕獲され、オオウミガラスは絶滅した。
    では、また明日。</p></article>`)
  const summary = summarise(article)
  expect(summary).toContain('オオウミガラスは北大西洋に生息していた飛べない海鳥で、')
  expect(summary).toContain('絶滅した。')
  expect(summary).not.toMatch(/天気|また明日/)
  expect(summary.length).toBeLessThanOrEqual(160)
})

test('a text of one endless sentence is cut between characters', () => {
  const summary = summarise({ title: '', text: '𠮷野家'.repeat(500), language: 'ja' })
  expect(summary).toMatch(/…$/)
  expect(summary.isWellFormed()).toBe(true)
})
