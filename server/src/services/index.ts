import type { FixedSettings } from '../core/settings.ts'
import { type AccessService, createAccessService } from './access.ts'
import { type AlertService, createAlertService } from './alerts.ts'
import { type ArtifactService, createArtifactService } from './artifacts.ts'
import { type AuditService, createAuditService } from './audit.ts'
import { type BackfillService, createBackfillService } from './backfills.ts'
import { type BackupService, createBackupService } from './backups.ts'
import { createDeadLetterService, type DeadLetterService } from './dead-letters.ts'
import { createDefinitionService, type DefinitionService } from './definitions.ts'
import type { Deps } from './deps.ts'
import { createEventService, type EventService } from './events.ts'
import { createEvidence, type Evidence } from './evidence.ts'
import { createFairTags, type FairTags } from './fair-tags.ts'
import { createForeignEvents, type ForeignEvents } from './foreign-events.ts'
import { FullDisks } from './full-disks.ts'
import { createHookService, type HookService } from './hooks.ts'
import { createJobService, type JobService } from './jobs.ts'
import { createKeyService, type KeyService } from './keys.ts'
import { LeaseDesk } from './lease-desk.ts'
import { createLogService, type LogService } from './logs.ts'
import { countingByMinute, createMinuteCounts, type MinuteCounts } from './minute-counts.ts'
import { createOccurrenceService, type OccurrenceService } from './occurrences.ts'
import { createQueueService, type QueueService } from './queues.ts'
import { createQuotaService, type QuotaService } from './quotas.ts'
import { createRedriveService, type RedriveService } from './redrives.ts'
import { createReservationService, type ReservationService } from './reservations.ts'
import { createRunService, type RunService } from './runs.ts'
import { createSettingsService, type SettingsService } from './settings.ts'
import { noting, Sightings } from './sightings.ts'
import { createStreamTokenService, type StreamTokenService } from './stream-tokens.ts'
import { createSubmitService, type SubmitService } from './submit-job.ts'
import { createTriggerService, type TriggerService } from './triggers.ts'
import { UserNames } from './user-names.ts'
import { createWorkerService, type WorkerService } from './workers.ts'

/** Every use case there is. Routes, the embedded library and the command line all go through these. */
export interface Services {
  deps: Deps
  submission: SubmitService
  jobs: JobService
  keys: KeyService
  reservations: ReservationService
  quotas: QuotaService
  access: AccessService
  streamTokens: StreamTokenService
  definitions: DefinitionService
  occurrences: OccurrenceService
  backfills: BackfillService
  triggers: TriggerService
  hooks: HookService
  runs: RunService
  logs: LogService
  fairTags: FairTags
  queues: QueueService
  events: EventService
  foreignEvents: ForeignEvents
  artifacts: ArtifactService
  deadLetters: DeadLetterService
  redrives: RedriveService
  workers: WorkerService
  settings: SettingsService
  backups: BackupService
  evidence: Evidence
  minuteCounts: MinuteCounts
  audit: AuditService
  alerts: AlertService
}

type GivenDeps = Omit<Deps, 'settings' | 'evidence' | 'fullDisks'>

/** `fixed` is what the environment says of settings. */
export function createServices(given: GivenDeps, fixed: FixedSettings = {}): Services {
  const fullDisks = new FullDisks(given)
  const watched = watch(given, fullDisks)
  const settings = createSettingsService(watched, fixed)
  const evidence = createEvidence({ ...watched, settings })
  const minuteCounts = createMinuteCounts(watched)
  const meter = countingByMinute(given.meter, minuteCounts)
  const deps = { ...watched, meter, fullDisks, settings, evidence }
  const fairTags = createFairTags(deps)
  const desk = new LeaseDesk(deps, fairTags)
  const names = new UserNames(deps)
  const submission = createSubmitService(deps, { fairTags, names, desk })
  const sightings = new Sightings(deps.world)
  const jobs = createJobService(deps, sightings)
  const access = createAccessService(deps)
  return {
    deps,
    submission,
    jobs,
    keys: createKeyService(deps),
    reservations: createReservationService(deps),
    quotas: createQuotaService(deps),
    access,
    streamTokens: createStreamTokenService(deps, jobs, access),
    definitions: createDefinitionService(deps, names),
    occurrences: createOccurrenceService(deps, submission),
    backfills: createBackfillService(deps),
    triggers: createTriggerService(deps),
    hooks: createHookService(deps),
    runs: noting(createRunService(deps, desk), sightings),
    logs: createLogService(deps),
    fairTags,
    queues: createQueueService(deps),
    events: createEventService(deps),
    foreignEvents: createForeignEvents(deps),
    artifacts: createArtifactService(deps),
    deadLetters: createDeadLetterService(deps, jobs, submission, fairTags),
    redrives: createRedriveService(deps),
    workers: createWorkerService(deps, sightings),
    settings,
    backups: createBackupService(deps),
    evidence,
    minuteCounts,
    audit: createAuditService(deps),
    alerts: createAlertService(deps),
  }
}

/** All that may fill a disk goes through the one that knows of full ones. */
function watch(given: GivenDeps, fullDisks: FullDisks): GivenDeps {
  const { blobs, logArchive } = given
  return {
    ...given,
    store: fullDisks.watchStore(),
    ...(blobs === undefined ? {} : { blobs: fullDisks.watchBlobs(blobs) }),
    ...(logArchive === undefined ? {} : { logArchive: fullDisks.watchLogArchive(logArchive) }),
  }
}
