import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { full, size } from '../../../../scripts/testing/size.ts'
import { platformWorld } from '../../world.ts'
import type { StoredItem } from '../item.ts'
import { encode, FileStore, Replay } from './file-store.ts'

let folder: string
let path: string
let warnings: string[]
const stores: FileStore[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-outbox-'))
  path = join(folder, 'state', 'outbox.jsonl')
  warnings = []
})
afterEach(async () => {
  await Promise.all(stores.splice(0).map((store) => store.close()))
  rmSync(folder, { recursive: true })
})

function open(at = path): FileStore {
  const store = new FileStore({ path: at, world: platformWorld, warn: (message) => warnings.push(message) })
  stores.push(store)
  return store
}

function item(id: string, more: Partial<StoredItem> = {}): StoredItem {
  return { id, key: `key-${id}`, body: { of: id }, savedAtMs: 1, attempts: 0, status: 'queued', dueAtMs: 0, ...more }
}

const header = encode({ header: { version: 1, generation: 'g' } })

function write(text: string): void {
  mkdirSync(join(path, '..'))
  writeFileSync(path, text)
}

const ids = async (store: FileStore) => (await store.list()).map(({ id }) => id)

async function filled(...names: string[]): Promise<Buffer> {
  const store = open()
  for (const name of names) await store.add(item(name))
  await store.close()
  return readFileSync(path)
}

describe('stored items', () => {
  test('keep their order and their last change for the next process', async () => {
    const store = open()
    for (const name of ['a', 'b', 'c']) expect(await store.add(item(name))).toEqual(item(name))
    const progress = { attempts: 2, status: 'failed', dueAtMs: 7, error: 'Größe\nfalsch' } as const
    expect(await store.update('b', progress)).toBe(true)
    expect(await store.remove('a')).toBe(true)
    const next = open()
    expect(await next.list()).toEqual([item('b', progress), item('c')])
    expect(await next.get('b')).toEqual(item('b', progress))
    expect(await next.get('a')).toBeUndefined()
    expect(warnings).toEqual([])
  })

  test('a removed item is neither changed nor removed again, and does not return', async () => {
    const store = open()
    await store.add(item('a'))
    await store.remove('a')
    expect(await store.update('a', { attempts: 1, status: 'queued', dueAtMs: 0 })).toBe(false)
    expect(await store.remove('a')).toBe(false)
    expect(await ids(open())).toEqual([])
  })

  test('a key is stored once, by any process', async () => {
    await open().add(item('a'))
    expect(await open().add(item('b', { key: 'key-a' }))).toEqual(item('a'))
    expect(await ids(open())).toEqual(['a'])
  })

  test('are readable only by the owner', async () => {
    await open().add(item('a'))
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(statSync(join(path, '..')).mode & 0o777).toBe(0o700)
  })

  test('survive concurrent writers, even during a rewrite of the file', async () => {
    const dead = Array.from({ length: 990 }, (_, i) => encode({ remove: String(i) }))
    write([header, ...dead].join(''))
    const [one, other] = [open(), open()]
    const kept: string[] = []
    for (let round = 0; round < size(2, 100); round++) {
      const names = Array.from({ length: 10 }, (_, i) => `${round}-${i}`)
      const [first = '', ...gone] = names
      await Promise.all(names.map((name, i) => (i % 2 === 0 ? one : other).add(item(name))))
      await Promise.all(gone.map((name, i) => (i % 2 === 0 ? one : other).remove(name)))
      kept.push(first)
    }
    expect((await ids(one)).sort()).toEqual(kept.sort())
    expect((await ids(open())).sort()).toEqual(kept.sort())
    expect(readFileSync(path, 'utf8').split('\n').length).toBeLessThan(1_000)
    expect(warnings).toEqual([])
  })

  test('are at most 10,000', async () => {
    const lines = Array.from({ length: 10_000 }, (_, i) => encode({ add: item(String(i)) }))
    write([header, ...lines].join(''))
    const store = open()
    await expect(store.add(item('more'))).rejects.toThrow(/There are 10000 items in .*; this item was not stored/)
    await store.remove('0')
    await store.add(item('more'))
  })
})

describe('a damaged file', () => {
  test('cut at any byte, keeps all complete lines and accepts new ones', async () => {
    const whole = await filled('a', 'b', 'c')
    const ends = [...whole.keys()].filter((i) => whole[i] === 0x0a).map((i) => i + 1)
    const someLengths = [0, 1, 50, ...ends, ...ends.map((end) => end - 1)]
    for (let length = 0; length <= whole.length; length++) {
      const wholeLines = ends.filter((end) => end <= length).length
      const names = ['a', 'b', 'c'].slice(0, Math.max(0, wholeLines - 1))
      const torn = length > 0 && !ends.includes(length)
      const replay = new Replay()
      replay.read(whole.subarray(0, length))
      expect([...replay.items.keys()]).toEqual(names)
      expect(replay.damaged.map(({ problem }) => problem)).toEqual(torn ? ['it is incomplete'] : [])
      if (!full && !someLengths.includes(length)) continue

      writeFileSync(path, whole.subarray(0, length))
      warnings = []
      const store = open()
      await store.add(item('new'))
      expect(await ids(store)).toEqual([...names, 'new'])
      expect(await ids(open())).toEqual([...names, 'new'])
      expect(warnings).toHaveLength(torn ? 1 : 0)
      if (torn)
        expect(warnings[0]).toMatch(/^One line of .* cannot be read \(line \d: it is incomplete\) and were moved/)
      await Promise.all(stores.splice(0).map((one) => one.close()))
    }
  })

  test.each([
    ['garbage', 'no line of ours', 'its checksum is wrong'],
    ['bytes that are no text', Buffer.from([0xff, 0xfe, 0, 0x80]), 'its checksum is wrong'],
    [
      'a line whose content changed',
      encode({ add: item('b') })
        .replace('key-b', 'key-c')
        .trimEnd(),
      'its checksum',
    ],
    ['an item without a key', encode({ add: item('b', { key: '' }) }).trimEnd(), 'key must be'],
    ['an item without a body', encode({ add: { ...item('b'), body: undefined } }).trimEnd(), 'body is missing'],
    [
      'attempts that are none',
      encode({ add: item('b', { attempts: -1 }) }).trimEnd(),
      'attempts must be a whole number',
    ],
    ['an item of no id', encode({ add: item('') }).trimEnd(), 'id must be text'],
    ['a second header', encode({ header: { version: 1, generation: 'x' } }).trimEnd(), 'only be the first line'],
    ['an empty line', '', 'its checksum is wrong'],
    ['the checksum of nothing', 'e3b0c442 ', 'it is not an outbox entry'],
  ])('%s in the middle is moved aside with a warning; the rest is kept', async (_, line, problem) => {
    const [header = '', a = '', c = ''] = (await filled('a', 'c')).toString().split(/(?<=\n)/)
    writeFileSync(path, Buffer.concat([Buffer.from(header + a), Buffer.from(line), Buffer.from(`\n${c}`)]))
    const store = open()
    expect(await ids(store)).toEqual(['a', 'c'])
    expect(warnings).toHaveLength(1)
    expect(warnings[0]).toContain(`One line of ${path} cannot be read (line 3: `)
    expect(warnings[0]).toContain(problem)
    expect(warnings[0]).toContain(`were moved to ${path}.damaged; 2 items are intact`)
    expect(readFileSync(`${path}.damaged`)).toEqual(Buffer.concat([Buffer.from(line), Buffer.from('\n')]))
    expect(await ids(open())).toEqual(['a', 'c'])
    expect(warnings).toHaveLength(1)
  })

  test('a file that is not an outbox is moved aside completely', async () => {
    write('my\nnotes\n')
    const store = open()
    await store.add(item('a'))
    expect(await ids(open())).toEqual(['a'])
    expect(readFileSync(`${path}.damaged`, 'utf8')).toBe('my\nnotes\n')
    expect(warnings[0]).toContain('2 lines of')
  })

  test('damage while the file is open is found', async () => {
    const store = open()
    await store.add(item('a'))
    writeFileSync(path, 'torn', { flag: 'a' })
    await store.add(item('b'))
    expect(await ids(store)).toEqual(['a', 'b'])
    rmSync(path)
    expect(await ids(store)).toEqual([])
    await store.add(item('c'))
    expect(await ids(open())).toEqual(['c'])
  })

  test('a file of a newer version is refused and not changed', async () => {
    const text = `${encode({ header: { version: 2, generation: 'g' } })}of another format\n`
    write(text)
    const store = open()
    for (const act of [store.list(), store.add(item('a')), store.remove('a')]) {
      await expect(act).rejects.toThrow(/was written by a newer version .*; update this program, or use another file$/)
    }
    expect(readFileSync(path, 'utf8')).toBe(text)
    expect(readdirSync(join(path, '..')).filter((name) => name.endsWith('.damaged'))).toEqual([])
  })

  test('an unwritable path is reported', async () => {
    writeFileSync(join(folder, 'file'), '')
    await expect(open(join(folder, 'file', 'outbox')).list()).rejects.toThrow(
      /^The lock file .* cannot be used: EEXIST/,
    )
    mkdirSync(join(folder, 'outbox'))
    await expect(open(join(folder, 'outbox')).list()).rejects.toThrow(/outbox cannot be read or written: EISDIR/)
  })
})
