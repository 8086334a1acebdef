/** Permissions of what Ichido makes: payloads, results, logs and hashes of tokens are in it. */
export interface FileModes {
  folder: number
  file: number
}

/** For the user that Ichido runs as, and nobody else. */
export const PRIVATE: FileModes = { folder: 0o700, file: 0o600 }

const GROUP_WRITES = 0o020
const SET_GROUP = 0o2000
export const OTHERS = 0o007
export const ALL_BUT_OWNER = 0o077

/**
 * Inside a folder of this mode. Nodes of several users share artifacts through a folder that their group may write to: what
 * is made in it is the group's, too. Any other folder keeps everything to its owner.
 */
export function modesInside(folderMode: number): FileModes {
  if ((folderMode & GROUP_WRITES) === 0) return PRIVATE
  return { folder: 0o770 | (folderMode & SET_GROUP), file: 0o660 }
}

/** As `chmod` takes it. */
export function modeText(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(3, '0')
}
