import * as realFiles from 'node:fs/promises'
import type { FileModes } from '../core/node/file-modes.ts'

type ModeFiles = Pick<typeof realFiles, 'mkdir' | 'chmod' | 'open'>

/**
 * The umask removes rights, so a group's rights are set again. A file share without modes is never asked to change any.
 */
const isForGroup = (mode: number) => (mode & 0o070) !== 0

/** Returns true if the folder was created. */
export async function makeFolder(path: string, modes: FileModes, files: ModeFiles = realFiles): Promise<boolean> {
  const made = await files.mkdir(path, { recursive: true, mode: modes.folder })
  if (made !== undefined && isForGroup(modes.folder)) await files.chmod(path, modes.folder)
  return made !== undefined
}

/** Fails if the file exists. */
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
