import { once } from 'node:events'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { isPublic } from './addresses.ts'
import { fetchPage, internet, type Network } from './fetch-page.ts'

test.each([
  ['this machine', '127.0.0.1 127.255.255.254 0.0.0.0 ::1 ::'],
  ['private networks', '10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fdff::1'],
  ['link-local', '169.254.0.1 169.254.169.254 fe80::1 febf::1'],
  ['metadata of clouds', '169.254.169.254 100.100.100.200 192.0.0.192 168.63.129.16 fd00:ec2::254'],
  ['carriers, tests, documentation', '100.64.0.1 192.0.2.1 198.18.0.1 198.51.100.7 203.0.113.9 2001:db8::1 3fff::1'],
  [
    'v4 in v6',
    '::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:7f00:1::',
  ],
  ['groups and the rest', '224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 ff02::1 fec0::1 100::1 5f00::1'],
  ['none at all', 'localhost 1.2.3 1.2.3.4.5'],
])('%s is not public', (_, addresses) => {
  expect(addresses.split(' ').filter(isPublic)).toEqual([])
})

test('other addresses are public', () => {
  const all = '1.1.1.1 8.8.8.8 93.184.215.14 172.15.255.255 172.32.0.1 100.63.255.255 2606:4700::1111 2a00:1450::1'
  expect(all.split(' ').filter((address) => !isPublic(address))).toEqual([])
})

let site: Server
let port: number
const asked: string[] = []
const answers: Record<string, (response: ServerResponse) => void> = {
  '/page': (response) => response.setHeader('content-type', 'text/html').end('<p>Hello'),
  '/packed': (response) => response.setHeader('content-encoding', 'gzip').end(gzipSync(Buffer.alloc(3 << 20, 'a'))),
  '/broken': (response) => response.setHeader('content-encoding', 'gzip').end('not gzip at all'),
  '/to-page': (response) => response.writeHead(302, { location: '/page' }).end(),
  '/to-inside': (response) => response.writeHead(307, { location: `http://inside.test:${port}/page` }).end(),
  '/to-mapped': (response) => response.writeHead(301, { location: `http://[::ffff:7f00:1]:${port}/page` }).end(),
  '/to-file': (response) => response.writeHead(301, { location: 'file:///etc/passwd' }).end(),
  '/round': (response) => response.writeHead(301, { location: '/round' }).end(),
  '/gone': (response) => response.writeHead(410).end(),
  '/down': (response) => response.writeHead(503).end(),
  '/cut': (response) => response.writeHead(200, { 'content-length': 100 }).write('abc', () => response.destroy()),
}

beforeAll(async () => {
  site = createServer((request, response) => {
    asked.push(`${request.headers.host} ${request.url}`)
    answers[request.url ?? '']?.(response)
  })
  await once(site.listen(0, '127.0.0.1'), 'listening')
  port = (site.address() as AddressInfo).port
})
afterAll(() => {
  site.closeAllConnections()
  site.close()
})

/** A fake internet in which `site.test` is ours and some names belong to attackers. */
const names: Record<string, string[]> = {
  'site.test': ['127.0.0.1'],
  'inside.test': ['192.168.0.1'],
  'half.test': ['8.8.8.8', '127.0.0.1'],
  'mapped.test': ['::ffff:169.254.169.254'],
}
const resolve = async (name: string) => names[name] ?? Promise.reject(new Error(`getaddrinfo ENOTFOUND ${name}`))
const open: Network = { resolve, allows: (address) => address === '127.0.0.1' }
const never = new AbortController().signal
const read = (path: string, network = open) => fetchPage(`http://site.test:${port}${path}`, network, never)
const thrownBy = (promise: Promise<unknown>) =>
  promise.then(
    () => 'nothing',
    (error: { name: string; code?: string }) => error.code ?? error.name,
  )

test.each([
  'http://127.0.0.1/',
  'http://localhost.test/',
  'http://2130706433/',
  'http://0x7f.1/',
  'http://0177.0.0.1/',
  'http://127.1:8080/',
  'http://[::1]/',
  'http://[::ffff:127.0.0.1]/',
  'http://[::ffff:a9fe:a9fe]/latest/meta-data/',
  'http://169.254.169.254/latest/meta-data/',
  'http://inside.test/',
  'http://half.test/',
  'http://mapped.test/',
  'http://me:secret@example.test/',
  'http://example.test:25/',
  'https://example.test:22/',
  'ftp://example.test/',
  'file:///etc/passwd',
  'gopher://example.test/',
])('%s is refused before anything is sent', async (url) => {
  const strict: Network = {
    ...internet,
    resolve: (name) => (name === 'localhost.test' ? resolve('site.test') : resolve(name)),
  }
  const before = asked.length
  expect(await thrownBy(fetchPage(url, strict, never))).toBe('ADDRESS_REFUSED')
  expect(asked).toHaveLength(before)
})

test('a page is requested at the address that was checked, even if DNS changes later', async () => {
  let asks = 0
  const rebinding: Network = { ...open, resolve: async () => (asks++ === 0 ? ['127.0.0.1'] : ['10.0.0.1']) }
  const page = await read('/page', rebinding)
  expect({ ...page, body: page.body.toString() }).toEqual({
    url: `http://site.test:${port}/page`,
    contentType: 'text/html',
    body: '<p>Hello',
  })
  expect(asks).toBe(1)
  expect(asked.at(-1)).toBe(`site.test:${port} /page`)
})

test('redirects are followed and checked again at each hop', async () => {
  expect((await read('/to-page')).url).toBe(`http://site.test:${port}/page`)
  const before = asked.length
  for (const path of ['/to-inside', '/to-mapped', '/to-file'])
    expect(await thrownBy(read(path))).toBe('ADDRESS_REFUSED')
  expect(asked).toHaveLength(before + 3)
  expect(await thrownBy(read('/round'))).toBe('TOO_MANY_REDIRECTS')
})

test('at most 2 MiB of an unpacked answer are read', async () => {
  expect((await read('/packed')).body).toHaveLength(2 << 20)
})

test('temporary failures can be retried, others are final', async () => {
  expect(await thrownBy(read('/down'))).toBe('PAGE_UNAVAILABLE')
  expect(await thrownBy(read('/cut'))).toBe('PAGE_UNREACHABLE')
  expect(await thrownBy(read('/broken'))).toBe('PAGE_UNREACHABLE')
  expect(await thrownBy(read('/gone'))).toBe('PAGE_REFUSED')
  expect(await thrownBy(fetchPage('http://nobody.test/', open, never))).toBe('PAGE_UNREACHABLE')
})

test('it stops when aborted, even during a DNS lookup', async () => {
  const stop = new AbortController()
  const slow: Network = { ...open, resolve: () => new Promise(() => stop.abort(new Error('stop'))) }
  await expect(fetchPage('http://slow.test/', slow, stop.signal)).rejects.toThrow('stop')
})

test('an earlier abort prevents the lookup, and a later lookup failure is handled', async () => {
  const stop = new AbortController()
  let lookups = 0
  const failing: Network = {
    ...open,
    resolve: async () => {
      lookups++
      stop.abort(new Error('stop'))
      throw new Error('getaddrinfo ENOTFOUND')
    },
  }
  const loose: unknown[] = []
  const onLoose = (reason: unknown) => loose.push(reason)
  process.on('unhandledRejection', onLoose)
  try {
    await expect(fetchPage('http://failing.test/', failing, stop.signal)).rejects.toThrow('stop')
    await expect(fetchPage('http://failing.test/', failing, stop.signal)).rejects.toThrow('stop')
    await expect(fetchPage('file:///etc/passwd', failing, stop.signal)).rejects.toThrow('stop')
    // Unhandled rejections are reported before this point.
    await setImmediate()
  } finally {
    process.off('unhandledRejection', onLoose)
  }
  expect([lookups, loose]).toEqual([1, []])
})
