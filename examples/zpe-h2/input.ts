import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { Trouble } from '../../scripts/boot/trouble.mjs'
import { parsePwInput } from './pw-input.ts'

/** The caller named a missing file, a file that pw.x cannot read, or an invalid PORT. */
export class BadInput extends Trouble {}

/** The text of an input: a file of the caller, or one of this example. */
export function readInput(name: string): string {
  // npm runs scripts in the root of the repository.
  const caller = process.env.INIT_CWD ?? process.cwd()
  const file = [resolve(caller, name), join(import.meta.dirname, name)].find((path) => existsSync(path))
  if (file === undefined) {
    throw new BadInput(`There is no ${name} in ${caller} or examples/zpe-h2; h2.in and h2-lda.in are there.`)
  }
  try {
    const content = readFileSync(file, 'utf8')
    parsePwInput(content)
    return content
  } catch (error) {
    throw new BadInput(`${file} is no input of pw.x: ${error instanceof Error ? error.message : String(error)}`)
  }
}
