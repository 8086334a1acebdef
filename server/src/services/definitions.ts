import type { JobPolicy } from '../core/job.ts'
import { findDefinition } from '../store/commands/access.ts'
import type { Deps } from './deps.ts'

/** What a definition lends to a job that is submitted under its name. */
export interface Template {
  queue: string | null
  payload: unknown
  policy: JobPolicy
}

export interface DefinitionService {
  find(name: string): Promise<Template | null>
}

export function createDefinitionService({ store }: Deps): DefinitionService {
  return {
    async find(name) {
      const found = await store.read(findDefinition(name))
      if (found === null) return null
      return { queue: found.queue, payload: JSON.parse(found.payload) as unknown, policy: found.policy }
    },
  }
}
