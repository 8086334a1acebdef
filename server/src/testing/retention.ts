import { SETTINGS, type SettingName } from '../core/settings.ts'
import { removeExpiredKeys } from '../store/commands/keys.ts'
import type { Term } from '../store/commands/leadership.ts'
import { type Command, command } from '../store/port.ts'
import { integer, one, statement, text, type Work } from '../store/statement.ts'

const lead = statement('', "UPDATE ichido.leadership SET holder = 'tester' WHERE holder IS NULL")
const readTerm = statement('', 'SELECT epoch, holder FROM ichido.leadership')

/** As whoever leads, or the test where nobody does. */
export function removeKeys(max: number): Command<number> {
  return command('remove_keys', function* work(again): Work<number> {
    yield* one(lead)
    const row = yield* one(readTerm)
    const term: Term = { epoch: integer(row, 'epoch'), holder: text(row, 'holder') }
    return yield* removeExpiredKeys(term, max).work(again)
  })
}

/** These settings, and the defaults of all others. */
export function settingsOf(values: Partial<Record<SettingName, number>>) {
  return { get: (name: SettingName) => values[name] ?? SETTINGS[name].default }
}
