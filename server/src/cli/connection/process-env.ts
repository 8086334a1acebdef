import { readFileSync } from 'node:fs'
import type { Surroundings } from '../../node/config.ts'

/** The environment of this process. */
export const processEnv: Surroundings = {
  env: process.env,
  cwd: process.cwd(),
  readFile: (path) => readFileSync(path, 'utf8'),
}
