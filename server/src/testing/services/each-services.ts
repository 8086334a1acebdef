import { afterAll, beforeAll, describe } from 'vitest'
import type { SubmitInput } from '../../contract/submit.ts'
import type { Caller, Role } from '../../core/limits/roles.ts'
import type { Deps } from '../../services/deps.ts'
import type { Services } from '../../services/index.ts'
import { unique } from '../store/store.ts'
import { ENGINES, type Engine, testServices } from './services.ts'

export interface GivenServices {
  engine: Engine
  services(): Services
  /** Submits a job of this caller, and returns its id. */
  submit(caller: Caller, input?: Partial<SubmitInput>, key?: string): Promise<string>
}

/** Runs a suite once for each engine. All its tests share the services, so each test uses its own callers. */
export function eachServices(suite: (given: GivenServices) => void, changes: Partial<Omit<Deps, 'store'>> = {}): void {
  describe.each(ENGINES)('%s', (engine) => {
    let opened: Awaited<ReturnType<typeof testServices>> | undefined
    beforeAll(async () => {
      opened = await testServices(engine, changes)
    })
    afterAll(() => opened?.close())
    function services(): Services {
      if (opened === undefined) throw new Error('The services are there while tests run')
      return opened.services
    }
    suite({
      engine,
      services,
      async submit(caller, input = {}, key) {
        const outcome = await services().submission.submit(caller, { kind: 'work', ...input }, { key: key ?? null })
        if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
        return outcome.jobId
      },
    })
  })
}

export function callerOf(role: Role): Caller {
  return { userId: unique(role), role }
}
