import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { TooManyParts } from './port.ts'

/** A stretch of an upload: so many bytes of a file, after the first few that an earlier part has already. */
export interface Part {
  file: string
  skip: number
  bytes: number
}

/** Each request looks at all the parts there are; 1,000 parts of 5 MiB each make the largest artifact. */
export const PARTS_MAX = 1_000
const OFFSET_DIGITS = 16

export function partName(fromByte: number): string {
  return String(fromByte).padStart(OFFSET_DIGITS, '0')
}

/**
 * The parts that make up the first bytes of an upload, without a gap. A part may still grow while somebody writes to it,
 * so parts may overlap: what an earlier part has is not taken from a later one, and nothing beyond `bytesMax`.
 */
export async function readParts(folder: string, bytesMax = Number.POSITIVE_INFINITY): Promise<Part[]> {
  const names = (await readdir(folder).catch(nothing)).filter((name) => /^\d{16}\./.test(name))
  if (names.length >= PARTS_MAX) throw new TooManyParts(`More than ${PARTS_MAX} parts; send larger ones`)
  const sizes = await Promise.all(names.map((name) => sizeOf(join(folder, name))))
  const found = names.map((name, i) => {
    const from = Number(name.slice(0, OFFSET_DIGITS))
    return { file: join(folder, name), from, end: from + (sizes[i] ?? 0) }
  })
  found.sort((a, b) => a.from - b.from || b.end - a.end)

  const parts: Part[] = []
  let at = 0
  for (const { file, from, end } of found) {
    if (from > at) break
    const until = Math.min(end, bytesMax)
    if (until > at) parts.push({ file, skip: at - from, bytes: until - at })
    at = Math.max(at, until)
  }
  return parts
}

function nothing(error: unknown): never[] {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return []
  throw error
}

async function sizeOf(file: string): Promise<number> {
  return stat(file).then(
    (facts) => facts.size,
    () => 0,
  )
}
