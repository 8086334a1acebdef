const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'))
const hex = (byte: number) => HEX[byte & 0xff] as string

/** Asking the system for random bytes each time took a tenth of a submit. */
const POOL_BYTES = 4_096
/** Four for the sequence, six for the end of the id. */
const BYTES_PER_ID = 10

/**
 * Makes UUIDv7. Ids of one process rise even within a millisecond and when the clock goes back, so that an index grows at its end:
 * a sequence of 32 bits follows the time. Each byte is looked up in a table, which takes a fifth of the time of a library.
 */
export function orderedUuids(now: () => number, fillRandom: (bytes: Uint8Array) => void): () => string {
  const pool = new Uint8Array(POOL_BYTES)
  let used = POOL_BYTES
  let [lastMs, seq] = [0, 0]
  return () => {
    if (used + BYTES_PER_ID > POOL_BYTES) {
      fillRandom(pool)
      used = 0
    }
    const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0, i = 0, j = 0] = pool.subarray(
      used,
      used + BYTES_PER_ID,
    )
    used += BYTES_PER_ID
    const ms = now()
    if (ms > lastMs) {
      lastMs = ms
      // The sequence starts each millisecond in the lower half, so that it does not run over.
      seq = ((a & 0x7f) << 24) | (b << 16) | (c << 8) | d
    } else seq++
    const [high, low] = [Math.floor(lastMs / 2 ** 32), lastMs >>> 0]
    return `${hex(high >> 8)}${hex(high)}${hex(low >>> 24)}${hex(low >>> 16)}-${hex(low >>> 8)}${hex(low)}-${hex(0x70 | (seq >>> 28))}${hex(seq >>> 20)}-${hex(0x80 | ((seq >>> 14) & 0x3f))}${hex(seq >>> 6)}-${hex((seq << 2) | (e & 0x03))}${hex(f)}${hex(g)}${hex(h)}${hex(i)}${hex(j)}`
  }
}
