const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB']

/** A number of bytes for people: `512 bytes`, `1.5 MiB`. */
export function bytesText(bytes: number): string {
  const power = bytes < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${power === 0 ? bytes : (bytes / 1024 ** power).toFixed(1)} ${UNITS[power]}`
}

/** How far something is, on the line that changes. */
export function bytesOf(name: string, doneBytes: number, totalBytes: number | null): string {
  return totalBytes === null
    ? `${name}  ${bytesText(doneBytes)}`
    : `${name}  ${bytesText(doneBytes)} of ${bytesText(totalBytes)}`
}
