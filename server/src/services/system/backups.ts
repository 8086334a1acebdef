import { type BackupShape, IchidoError } from '@ichido/sdk/protocol'
import type { Caller } from '../../core/limits/roles.ts'
import { recordBackup } from '../../store/system/backups.ts'
import { requireAbility } from '../answers.ts'
import type { Deps } from '../deps.ts'

export interface BackupService {
  create(caller: Caller): Promise<BackupShape>
  /**
   * Makes a backup if the last one is older than `backup_interval_seconds`. The answer is how long to wait for the next
   * one.
   */
  createIfDue(): Promise<number | null>
}

type BackupDeps = Pick<Deps, 'world' | 'store' | 'settings' | 'backups'>

export function createBackupService({ world, store, settings, backups }: BackupDeps): BackupService {
  let underWay: Promise<BackupShape> | null = null

  /** A call during a backup waits for it, and then makes another one, which has everything up to the call. */
  async function make(): Promise<BackupShape> {
    while (underWay !== null) await underWay.catch(() => {})
    underWay = makeNow()
    return underWay.finally(() => {
      underWay = null
    })
  }

  async function makeNow(): Promise<BackupShape> {
    if (backups === undefined) throw new IchidoError('NOT_FOUND', ELSEWHERE)
    const { name, rows, bytes } = await backups.make()
    for (const old of backups.list().slice(0, -settings.get('backups_kept'))) backups.remove(old.name)
    return { name, rows, bytes }
  }

  return {
    async create(caller) {
      requireAbility(caller, 'administer')
      const made = await make()
      await store.write(recordBackup(made.name, { id: world.uuid(), actor: caller.userId }))
      return made
    },
    async createIfDue() {
      const intervalMs = settings.get('backup_interval_seconds') * 1_000
      if (intervalMs === 0 || backups === undefined) return null
      const ageMs = world.now() - (backups.list().at(-1)?.createdAtMs ?? Number.NEGATIVE_INFINITY)
      // After a clock went back, the last backup may be in the future. It must not delay the next one.
      if (ageMs >= 0 && ageMs < intervalMs) return intervalMs - ageMs
      await make()
      return intervalMs
    },
  }
}

const ELSEWHERE = 'The jobs of this node are in PostgreSQL: run `ichido backup` with its DATABASE_URL, or use pg_dump'
