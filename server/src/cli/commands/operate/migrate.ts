import type { Command } from 'commander'
import { opening, withStore } from '../../connection/opening.ts'
import { processEnv } from '../../connection/process-env.ts'
import { outJson, say } from '../../output/terminal.ts'

export function addMigrate(program: Command): void {
  program
    .command('migrate')
    .description("bring the store's schema up to date (serve does it too)")
    .option('--json', 'print JSON')
    .action(migrate)
}

async function migrate({ json }: { json?: boolean }): Promise<void> {
  const { readStoreConfig } = await import('../../../node/config.ts')
  const { schemaState } = await import('../../../node/maintenance.ts')
  const config = readStoreConfig(processEnv)
  const { found } = await opening(config, schemaState(config.storage))
  const health = await withStore(config, (store) => store.health())
  const { engine, location, schemaVersion } = health
  if (json) return outJson({ engine, location, from: found, to: schemaVersion })
  if (found === schemaVersion) return say(`Nothing to do: ${location} is at schema version ${schemaVersion}.`)
  say(
    found === null
      ? `Made schema version ${schemaVersion} in ${location}.`
      : `Migrated ${location} from schema version ${found} to ${schemaVersion}.`,
  )
}
