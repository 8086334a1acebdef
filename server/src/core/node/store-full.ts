/** What can fill up: the database, or the folder of artifacts and archived logs. */
export const FULL_PLACES = ['store', 'artifacts'] as const
export type FullPlace = (typeof FULL_PLACES)[number]

const NEXT = 'Free space on it or enlarge it. Ichido then continues by itself, and you can send the same request again.'

/** A disk is full. Nothing of what was asked for is stored. */
export class StoreFull extends Error {
  override readonly name = 'StoreFull'
  readonly place: FullPlace

  /** @param disk names the disk, for people: "that holds DATA_DIR". */
  constructor(place: FullPlace, disk: string, cause?: unknown) {
    super(`The disk ${disk} is full. ${NEXT}`, { cause })
    this.place = place
  }
}

/** No blocks, no inodes, or the quota of the user or folder is used up. */
export function isDiskFull(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'ENOSPC' || error.code === 'EDQUOT')
}
