import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { Trouble } from './trouble.mjs'

const BLOCK = 512
const FILE = ['0', '\0', '']

/**
 * Unpacks a package of the npm registry: only files, without their common top folder. This is our own code because not
 * every system has `tar`, and an npm would run before it was checked.
 */
export function unpackTarball(bytes, folder) {
  const archive = gunzipSync(bytes)
  let longName
  for (let at = 0; at + BLOCK <= archive.length; ) {
    const header = archive.subarray(at, at + BLOCK)
    if (header.every((byte) => byte === 0)) return
    const size = number(header, 124, 12)
    const body = archive.subarray(at + BLOCK, at + BLOCK + size)
    const type = text(header, 156, 1)
    if (type === 'x') longName = paxPath(body) ?? longName
    else if (type === 'L') longName = text(body, 0, size)
    else {
      if (FILE.includes(type)) writeOne(folder, longName ?? nameOf(header), body, number(header, 100, 8))
      longName = undefined
    }
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK
  }
}

function writeOne(folder, name, body, mode) {
  const parts = name.split('/').slice(1)
  if (parts.length === 0 || parts.some((part) => part === '..' || part === '' || part.includes('\\'))) {
    throw new Trouble(`A package holds a file with the name ${JSON.stringify(name)}, which is not unpacked.`)
  }
  const path = join(folder, ...parts)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, body, { mode: mode & 0o111 ? 0o755 : 0o644 })
}

function nameOf(header) {
  const prefix = text(header, 345, 155)
  const name = text(header, 0, 100)
  return text(header, 257, 5) === 'ustar' && prefix !== '' ? `${prefix}/${name}` : name
}

/** Lines like `30 path=package/…`, each with its length in front. */
function paxPath(body) {
  for (let at = 0; at < body.length; ) {
    const length = Number.parseInt(body.toString('utf8', at, at + 20), 10)
    if (!(length > 0)) return undefined
    const [, name, value] = /^\d+ ([^=]+)=([\s\S]*)\n$/.exec(body.toString('utf8', at, at + length)) ?? []
    if (name === 'path') return value
    at += length
  }
  return undefined
}

function text(bytes, from, length) {
  const part = bytes.subarray(from, from + length)
  const end = part.indexOf(0)
  return part.toString('utf8', 0, end === -1 ? length : end)
}

const number = (header, from, length) => Number.parseInt(text(header, from, length).trim() || '0', 8)
