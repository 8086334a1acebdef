import { statSync } from 'node:fs'
import { join } from 'node:path'
import { ALL_BUT_OWNER, modesInside, modeText, OTHERS, PRIVATE } from '../core/node/file-modes.ts'
import { BESIDE, DATABASE_FILE } from '../store/engines/sqlite/sqlite.ts'
import type { ServerConfig } from './config.ts'

/** A path that others on this machine can read or list, and the command that ends it. */
export interface Exposed {
  path: string
  mode: string
  mend: string
}

/**
 * What an earlier version made, or somebody else. The server tightens its database when it starts, but changes no folder
 * that was there before: that may be anybody's.
 */
export function exposedFiles({ storage, artifacts }: Pick<ServerConfig, 'storage' | 'artifacts'>): Exposed[] {
  const found: Exposed[] = []
  const look = (path: string, bits: number, mend: string) => {
    const mode = modeOf(path)
    if ((mode & bits) !== 0) found.push({ path, mode: modeText(mode), mend: `${mend} ${path}` })
  }
  const lookAtArtifacts = (folder: string) =>
    modesInside(modeOf(folder)) === PRIVATE
      ? look(folder, ALL_BUT_OWNER, 'chmod -R go-rwx')
      : look(folder, OTHERS, 'chmod -R o-rwx')

  if (artifacts.folder !== undefined) lookAtArtifacts(artifacts.folder)
  if ('dataDir' in storage) {
    const { dataDir } = storage
    look(dataDir, ALL_BUT_OWNER, `chmod ${modeText(PRIVATE.folder)}`)
    // Nobody gets to what is in a folder that is private itself.
    if (found.some(({ path }) => path === dataDir)) {
      for (const suffix of BESIDE) {
        look(join(dataDir, DATABASE_FILE + suffix), ALL_BUT_OWNER, `chmod ${modeText(PRIVATE.file)}`)
      }
      lookAtArtifacts(join(dataDir, 'artifacts'))
    }
  }
  return found
}

/** What is not there is open to nobody. */
function modeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mode ?? 0
}
