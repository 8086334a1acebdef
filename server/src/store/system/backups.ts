import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import type { Work } from '../statement.ts'

/** Records who had a backup made: it contains all payloads and the secrets of hooks. */
export function recordBackup(name: string, by: By): Command<void> {
  return command('record_backup', function* work(again): Work<void> {
    if (!(yield* isRecorded(again, by))) yield* record(by, 'backup.create', name, null, null)
  })
}
