let lastMs = Number.NaN
let lastIso = ''

/** Jobs of one batch share their instants. */
export function iso(ms: number): string {
  if (ms !== lastMs) {
    lastIso = new Date(ms).toISOString()
    lastMs = ms
  }
  return lastIso
}

export function isoOrNull(ms: number | null): string | null {
  return ms === null ? null : iso(ms)
}
