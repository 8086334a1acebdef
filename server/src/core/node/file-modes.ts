/** Permissions of the files that Ichido makes: they contain payloads, results, logs and hashes of tokens. */
export interface FileModes {
  folder: number
  file: number
}

/** Only the user that Ichido runs as has access. */
export const PRIVATE: FileModes = { folder: 0o700, file: 0o600 }

const GROUP_WRITES = 0o020
const SET_GROUP = 0o2000
export const OTHERS = 0o007
export const ALL_BUT_OWNER = 0o077

/**
 * The modes inside a folder of this mode. Nodes of several users share artifacts through a folder that their group may
 * write to, so its files belong to the group. In any other folder they belong to the owner alone.
 */
export function modesInside(folderMode: number): FileModes {
  if ((folderMode & GROUP_WRITES) === 0) return PRIVATE
  return { folder: 0o770 | (folderMode & SET_GROUP), file: 0o660 }
}

/** The mode as `chmod` takes it. */
export function modeText(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(3, '0')
}
