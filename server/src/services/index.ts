import type { FixedSettings } from '../core/limits/settings.ts'
import { type AccessService, type AuditService, createAccessService, createAuditService } from './access/access.ts'
import { createSessionService, type SessionService } from './access/sessions.ts'
import { createStreamTokenService, type StreamTokenService } from './access/stream-tokens.ts'
import { type ArtifactService, createArtifactService } from './artifacts/artifacts.ts'
import { createDeadLetterService, type DeadLetterService } from './dead-letters/dead-letters.ts'
import type { Deps } from './deps.ts'
import { createEventService, createForeignEvents, type EventService, type ForeignEvents } from './events/events.ts'
import { createJobService, type JobService } from './jobs/jobs.ts'
import { createFairTags, type FairTags } from './leasing/fair-tags.ts'
import { PollDispatcher } from './leasing/poll-dispatcher.ts'
import { createQueueService, type QueueService } from './leasing/queues.ts'
import { RecentPolls } from './leasing/recent-polls.ts'
import { UserNames } from './limits/maximum.ts'
import { createQuotaService, type QuotaService } from './limits/quotas.ts'
import { createLogService, type LogService } from './logs/logs.ts'
import {
  createOperationService,
  createRedriveService,
  type OperationService,
  type RedriveService,
} from './operations/operations.ts'
import { createRunService, noting, type RunService } from './runs/runs.ts'
import { createDefinitionService, type DefinitionService } from './schedules/definitions.ts'
import {
  type BackfillService,
  createBackfillService,
  createOccurrenceService,
  type OccurrenceService,
} from './schedules/occurrences.ts'
import { createKeyService, type KeyService } from './submission/keys.ts'
import { createReservationService, type ReservationService } from './submission/reservations.ts'
import { createSubmitToWaitingPolls } from './submission/submit-and-lease.ts'
import { createSubmitService, renderAccepted, type SubmitService } from './submission/submit-job.ts'
import { type AlertService, createAlertService, FullDisks } from './system/alerts.ts'
import { type BackupService, createBackupService } from './system/backups.ts'
import {
  countingByMinute,
  createMinuteCounts,
  createPromiseCounters,
  type MinuteCounts,
  type PromiseCounters,
} from './system/counters.ts'
import {
  countingBySeries,
  createSeriesCounts,
  createSeriesService,
  type SeriesCounts,
  type SeriesService,
} from './system/series.ts'
import { createSettingsService, type SettingsService } from './system/settings.ts'
import { createSystemService, type SystemService } from './system/system.ts'
import { createHookService, createTriggerService, type HookService, type TriggerService } from './triggers/triggers.ts'
import { type CallbackService, createCallbackService } from './webhooks/callbacks.ts'
import { createWebhookService, type WebhookService } from './webhooks/webhooks.ts'
import { createWorkerService, type WorkerService } from './workers/workers.ts'

/** All use cases. Routes, the embedded library and the command line use them. */
export interface Services {
  deps: Deps
  submission: SubmitService
  jobs: JobService
  keys: KeyService
  reservations: ReservationService
  quotas: QuotaService
  access: AccessService
  sessions: SessionService
  streamTokens: StreamTokenService
  definitions: DefinitionService
  occurrences: OccurrenceService
  backfills: BackfillService
  triggers: TriggerService
  hooks: HookService
  webhooks: WebhookService
  callbacks: CallbackService
  runs: RunService
  logs: LogService
  fairTags: FairTags
  queues: QueueService
  events: EventService
  foreignEvents: ForeignEvents
  artifacts: ArtifactService
  deadLetters: DeadLetterService
  operations: OperationService
  redrives: RedriveService
  workers: WorkerService
  settings: SettingsService
  backups: BackupService
  evidence: PromiseCounters
  minuteCounts: MinuteCounts
  seriesCounts: SeriesCounts
  series: SeriesService
  audit: AuditService
  alerts: AlertService
  system: SystemService
}

type GivenDeps = Omit<Deps, 'settings' | 'evidence' | 'fullDisks'>

/** `fixed`: settings from the environment. */
export function createServices(given: GivenDeps, fixed: FixedSettings = {}): Services {
  const fullDisks = new FullDisks(given)
  const watched = watch(given, fullDisks)
  const settings = createSettingsService(watched, fixed)
  const evidence = createPromiseCounters({ ...watched, settings })
  const minuteCounts = createMinuteCounts(watched)
  const seriesCounts = createSeriesCounts(watched)
  const meter = countingBySeries(countingByMinute(given.meter, minuteCounts), seriesCounts)
  const deps = { ...watched, meter, fullDisks, settings, evidence }
  const fairTags = createFairTags(deps)
  const dispatcher = new PollDispatcher(deps, fairTags)
  const names = new UserNames(deps)
  const submission = createSubmitService(deps, {
    fairTags,
    names,
    submitToWaitingPolls: createSubmitToWaitingPolls(deps, dispatcher, renderAccepted),
  })
  const recentPolls = new RecentPolls(deps.world)
  const jobs = createJobService(deps, recentPolls)
  const sessions = createSessionService(deps)
  const access = createAccessService(deps, sessions)
  return {
    deps,
    submission,
    jobs,
    keys: createKeyService(deps),
    reservations: createReservationService(deps),
    quotas: createQuotaService(deps),
    access,
    sessions,
    streamTokens: createStreamTokenService(deps, jobs, access),
    definitions: createDefinitionService(deps, names),
    occurrences: createOccurrenceService(deps, submission),
    backfills: createBackfillService(deps),
    triggers: createTriggerService(deps),
    hooks: createHookService(deps),
    webhooks: createWebhookService(deps),
    callbacks: createCallbackService(deps),
    runs: noting(createRunService(deps, dispatcher), recentPolls),
    logs: createLogService(deps),
    fairTags,
    queues: createQueueService(deps),
    events: createEventService(deps),
    foreignEvents: createForeignEvents(deps),
    artifacts: createArtifactService(deps),
    deadLetters: createDeadLetterService(deps, jobs, submission, fairTags),
    operations: createOperationService(deps),
    redrives: createRedriveService(deps),
    workers: createWorkerService(deps, recentPolls),
    settings,
    backups: createBackupService(deps),
    evidence,
    minuteCounts,
    seriesCounts,
    series: createSeriesService(deps),
    system: createSystemService(deps),
    audit: createAuditService(deps),
    alerts: createAlertService(deps),
  }
}

/** All writes to disks go through `FullDisks`, which notices full ones. */
function watch(given: GivenDeps, fullDisks: FullDisks): GivenDeps {
  const { blobs, logArchive } = given
  return {
    ...given,
    store: fullDisks.watchStore(),
    ...(blobs === undefined ? {} : { blobs: fullDisks.watchBlobs(blobs) }),
    ...(logArchive === undefined ? {} : { logArchive: fullDisks.watchLogArchive(logArchive) }),
  }
}
