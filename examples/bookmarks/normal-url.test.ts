import { expect, test } from 'vitest'
import { normalUrl } from './normal-url.ts'

test.each([
  ['HTTPS://Example.ORG:443', 'https://example.org/'],
  ['https://example.org./a', 'https://example.org/a'],
  ['https://example.org/a#part', 'https://example.org/a'],
  ['https://example.org/a?', 'https://example.org/a'],
  ['https://example.org/a?utm_source=x&b=2&a=1&fbclid=y', 'https://example.org/a?a=1&b=2'],
  ['https://example.org/%7euser/%c3%a9', 'https://example.org/~user/%C3%A9'],
  ['https://example.org/a/../b/./c', 'https://example.org/b/c'],
  [' https://例え.jp/道 ', 'https://xn--r8jz45g.jp/%E9%81%93'],
])('%s is normalised to %s', (url, normal) => {
  expect(normalUrl(url)).toBe(normal)
  expect(normalUrl(normal)).toBe(normal)
})

test('addresses whose pages may differ stay different', () => {
  const urls = [
    'http://a.org/',
    'https://a.org/',
    'https://www.a.org/',
    'https://a.org/B',
    'https://a.org/b',
    'https://a.org/b/',
  ]
  expect(new Set(urls.map(normalUrl)).size).toBe(urls.length)
})

test.each([
  '',
  'example.org',
  'ftp://a.org/',
  'javascript:alert(1)',
  'https://',
  'https://me:pw@a.org/',
  `https://a.org/${'a'.repeat(3_000)}`,
])('refused: %s', (url) => {
  expect(() => normalUrl(url)).toThrow(/^must /)
})
