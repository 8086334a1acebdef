import * as realFiles from 'node:fs/promises'
import type { FileModes } from '../core/node/file-modes.ts'

export type ModeFiles = Pick<typeof realFiles, 'mkdir' | 'chmod' | 'open'>

/** The umask takes rights away: a group's are set once more. A share that knows no modes is then not asked to change any. */
const isForGroup = (mode: number) => (mode & 0o070) !== 0

/** Answers whether it had to be made. */
export async function makeFolder(path: string, modes: FileModes, files: ModeFiles = realFiles): Promise<boolean> {
  const made = await files.mkdir(path, { recursive: true, mode: modes.folder })
  if (made !== undefined && isForGroup(modes.folder)) await files.chmod(path, modes.folder)
  return made !== undefined
}

/** A file that nobody has made before. */
export async function openNew(
  path: string,
  modes: FileModes,
  files: ModeFiles = realFiles,
): Promise<realFiles.FileHandle> {
  const handle = await files.open(path, 'wx', modes.file)
  try {
    if (isForGroup(modes.file)) await handle.chmod(modes.file)
    return handle
  } catch (error) {
    await handle.close()
    throw error
  }
}
