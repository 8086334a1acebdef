import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { basename } from 'node:path'

/** Loaded before a supervisor, which then has no delegated control group. */
const make = fs.mkdirSync

fs.mkdirSync = ((path: fs.PathLike, options?: fs.MakeDirectoryOptions) => {
  if (/^ichido-\d+-\d+$/.test(basename(String(path)))) throw new Error('EACCES: permission denied')
  return make(path, options)
}) as typeof fs.mkdirSync
syncBuiltinESMExports()
