import { type AccessService, createAccessService } from './access.ts'
import { type ArtifactService, createArtifactService } from './artifacts.ts'
import { createDefinitionService, type DefinitionService } from './definitions.ts'
import type { Deps } from './deps.ts'
import { createEventService, type EventService } from './events.ts'
import { createJobService, type JobService } from './jobs.ts'
import { createKeyService, type KeyService } from './keys.ts'
import { createQuotaService, type QuotaService } from './quotas.ts'
import { createReservationService, type ReservationService } from './reservations.ts'
import { createRunService, type RunService } from './runs.ts'
import { createSubmitService, type SubmitService } from './submit-job.ts'
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
  definitions: DefinitionService
  runs: RunService
  events: EventService
  artifacts: ArtifactService
  workers: WorkerService
}

export function createServices(deps: Deps): Services {
  return {
    deps,
    submission: createSubmitService(deps),
    jobs: createJobService(deps),
    keys: createKeyService(deps),
    reservations: createReservationService(deps),
    quotas: createQuotaService(deps),
    access: createAccessService(deps),
    definitions: createDefinitionService(deps),
    runs: createRunService(deps),
    events: createEventService(deps),
    artifacts: createArtifactService(deps),
    workers: createWorkerService(deps),
  }
}
