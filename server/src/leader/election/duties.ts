import type { SettingName } from '../../core/limits/settings.ts'
import type { Services } from '../../services/index.ts'
import { type AlertChange, createAlert, createRecordFull } from '../duties/alert.ts'
import { createArchive } from '../duties/archive.ts'
import { createDeliver } from '../duties/deliver.ts'
import { createOperate } from '../duties/operate.ts'
import { createPromote } from '../duties/promote.ts'
import { createReap } from '../duties/reap.ts'
import { createRelay } from '../duties/relay.ts'
import { createRetain } from '../duties/retain.ts'
import { createSample, SAMPLE_INTERVAL_MS } from '../duties/sample.ts'
import { createBackfill, createSchedule } from '../duties/schedule.ts'
import { createExpireUploads, createTidyArtifacts } from '../duties/tidy-artifacts.ts'
import { createTrigger } from '../duties/trigger.ts'
import { createVacuum, VACUUM_INTERVAL_MS } from '../duties/vacuum.ts'
import type { ClockWatch } from './clock-watch.ts'
import type { Duty, Leading } from './elect.ts'
import type { Loop } from './loop.ts'

const HOUR_SECONDS = 3_600

type IntervalSetting = Exclude<Extract<SettingName, `${string}_interval_seconds`>, 'backup_interval_seconds'>

const dutyOf =
  ({ settings }: Services) =>
  (name: string, interval: IntervalSetting, tick: Duty['tick']): Duty => ({
    name,
    intervalMs: () => settings.get(interval) * 1_000,
    tick,
  })

/** The duties of every node. Several nodes at once do no harm. */
export function nodeDuties(services: Services): Duty[] {
  const { deps, fairTags, evidence, minuteCounts, seriesCounts } = services
  const { blobs } = deps
  const duty = dutyOf(services)
  const duties = [
    duty('promote', 'promote_interval_seconds', createPromote({ ...deps, fairTags })),
    duty('evidence', 'evidence_interval_seconds', async () => {
      await minuteCounts.flush()
      await seriesCounts.flush()
      return evidence.flush()
    }),
    duty('expire-uploads', 'uploads_interval_seconds', createExpireUploads(deps)),
  ]
  if (blobs !== undefined) {
    duties.push(duty('tidy-artifacts', 'artifacts_interval_seconds', createTidyArtifacts({ ...deps, blobs })))
  }
  return duties
}

interface LeaderSurroundings {
  clock: ClockWatch
  /** All loops of this node. */
  loops(): readonly Loop[]
  onTrouble(where: string, error: unknown): void
  onAlert(change: AlertChange): void
}

/** The duties of the leader, for one term. */
export function leaderDuties(services: Services, surroundings: LeaderSurroundings, leading: Leading): Duty[] {
  const { deps, fairTags } = services
  const { relay, logArchive, backups, settings, courier } = deps
  const { clock, loops, onTrouble, onAlert } = surroundings
  const duty = dutyOf(services)
  const duties: Duty[] = [
    duty('reap', 'reap_interval_seconds', createReap({ ...deps, clock, leading })),
    duty('retain', 'retain_interval_seconds', createRetain(deps, leading)),
    duty('schedule', 'schedule_interval_seconds', createSchedule({ ...deps, fairTags, clock, onTrouble }, leading)),
    duty('backfill', 'schedule_interval_seconds', createBackfill({ ...deps, fairTags }, leading)),
    {
      ...duty('trigger', 'trigger_interval_seconds', createTrigger({ ...deps, fairTags, onTrouble }, leading)),
      wokenBy: 'triggers' as const,
    },
    duty('operate', 'operation_interval_seconds', createOperate({ ...deps, fairTags }, leading)),
    duty('alert', 'alert_interval_seconds', createAlert({ ...deps, loops, onAlert }, leading)),
    duty('record-full', 'alert_interval_seconds', createRecordFull(deps, leading)),
    { name: 'sample', intervalMs: () => SAMPLE_INTERVAL_MS, tick: createSample(deps, leading) },
    { name: 'vacuum', intervalMs: () => VACUUM_INTERVAL_MS, tick: createVacuum(deps) },
  ]
  if (backups !== undefined) {
    // The tick returns when the next backup is due. While backups are off, a change of settings wakes it.
    const intervalMs = () => Math.max(1, settings.get('backup_interval_seconds') || HOUR_SECONDS) * 1_000
    duties.push({ name: 'back-up', intervalMs, tick: () => services.backups.createIfDue() })
  }
  if (relay !== undefined) {
    duties.push(duty('relay', 'relay_interval_seconds', createRelay({ ...deps, relay }, leading)))
  }
  if (courier !== undefined) {
    const tick = createDeliver({ ...deps, courier, onTrouble }, leading)
    duties.push({ ...duty('deliver', 'webhooks_interval_seconds', tick), wokenBy: 'webhooks' as const })
  }
  if (logArchive !== undefined) {
    duties.push(duty('archive', 'archive_interval_seconds', createArchive({ ...deps, logArchive }, leading)))
  }
  return duties
}
