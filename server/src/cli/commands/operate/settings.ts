import type { Page, SettingShape } from '@ichido/sdk/protocol'
import { type Command, InvalidArgumentError } from 'commander'
import { unitOfSetting } from '../../../core/limits/duration.ts'
import { type Connection, connect } from '../../connection/connect.ts'
import type { JsonFlag } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { instant, printFacts, printPage } from '../../output/print.ts'
import { number, timeIn } from '../../values.ts'

export function addSettings(program: Command): void {
  const settings = program.command('settings').description('list, show and change the settings of the server')
  settings
    .command('list')
    .description('list the settings in force on the node that answers')
    .option('--json', 'print JSON')
    .action(list)
  settings
    .command('show <setting>')
    .description('show a setting')
    .option('--json', 'print JSON')
    .action(async (name: string, { json }: JsonFlag) => {
      print(await connect().ask<SettingShape>('GET', pathOf(name)), json)
    })
  settings
    .command('set <setting> <value>')
    .description('change a setting on all nodes, without a restart; a time may be given as 30s, 10m, 2h or 7d')
    .option('--json', 'print JSON')
    .action(async (name: string, text: string, { json }: JsonFlag) => {
      const { ask } = connect()
      const value = await parseValue(name, text, ask)
      print(await ask<SettingShape>('PUT', pathOf(name), { value }), json)
    })
  settings
    .command('reset <setting>')
    .description('reset a setting to its default')
    .option('--json', 'print JSON')
    .action(async (name: string, { json }: JsonFlag) => {
      print(await connect().ask<SettingShape>('DELETE', pathOf(name)), json)
    })
}

function pathOf(name: string): string {
  return `/v1/settings/${encodeURIComponent(name)}`
}

async function parseValue(name: string, text: string, ask: Connection['ask']): Promise<number> {
  const unit = unitOfSetting(name)
  try {
    return unit === null ? number(text) : timeIn(unit)(text)
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error
    // A wrong name explains more than a wrong value.
    await ask<SettingShape>('GET', pathOf(name))
    throw new Failure(`${text} is not a value of ${name}. ${error.message}`, undefined, EXIT.usage)
  }
}

async function list({ json }: JsonFlag): Promise<void> {
  printPage(await connect().ask<Page<SettingShape>>('GET', '/v1/settings'), json, 'No settings.', {
    SETTING: (setting) => setting.name,
    VALUE: (setting) => setting.value,
    DEFAULT: (setting) => setting.default,
    SOURCE: (setting) => setting.source,
    DESCRIPTION: (setting) => setting.description,
  })
}

function print(setting: SettingShape, json: boolean | undefined): void {
  printFacts(setting, json, [
    ['setting', setting.name],
    ['value', String(setting.value)],
    ['default', String(setting.default)],
    ['from', String(setting.min)],
    ['to', String(setting.max)],
    ['source', setting.source],
    ['description', setting.description],
    ['changed', setting.updated_at && `${instant(setting.updated_at)} by ${setting.updated_by}`],
  ])
}
