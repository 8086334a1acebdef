import type { Command } from 'commander'
import { readClientConfig } from '../node/config.ts'
import { processEnv } from './connection/process-env.ts'
import { EXIT, Failure } from './output/exit.ts'
import { commandLine } from './self.ts'

/** Words that people try because the API has them, and the page that tells of each. */
const OVER_HTTP = {
  audit: 'docs/operations/secure.md#audit',
  settings: 'docs/operations/configure.md#settings',
} as const

/** Commands that there are not, each with the place of what was meant. */
export function addUnknownCommands(program: Command): void {
  const add = (name: string, advice: () => string) =>
    program
      .command(`${name} [words...]`, { hidden: true })
      .allowUnknownOption()
      .helpOption(false)
      .action(() => {
        throw new Failure(`unknown command '${name}'`, advice(), EXIT.usage)
      })
  add('schedules', () => `Schedules belong to definitions: \`${commandLine('definitions --help')}\``)
  for (const [name, page] of Object.entries(OVER_HTTP)) {
    add(name, () => {
      const { url, token } = readClientConfig(processEnv)
      const header = token === undefined ? '' : ' -H "authorization: Bearer $ICHIDO_TOKEN"'
      return `Use the HTTP API instead (${page}):\n  curl -s ${url}/v1/${name}${header}`
    })
  }
}
