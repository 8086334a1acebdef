import type { JobShape, Page } from '@ichido/sdk/protocol'
import { SHORT_ID_PATTERN } from '../../contract/jobs.ts'
import { EXIT, Failure } from '../output/exit.ts'
import { commandLine } from '../self.ts'
import { type Connection, query } from './connect.ts'

/** More ids than this are not shown, if a short id stands for several jobs. */
const CANDIDATES_MAX = 10

/** The id of a job that is given in full, or in the short form of the dashboard, which the server looks up. */
export async function jobIdOf({ ask }: Connection, given: string): Promise<string> {
  if (!SHORT_ID_PATTERN.test(given)) return given
  const page = await ask<Page<JobShape>>('GET', `/v1/jobs${query({ short_id: given, limit: CANDIDATES_MAX })}`)
  const [first, ...others] = page.data.map(({ job_id }) => job_id)
  if (first === undefined) throw new Failure(`There is no job ${given}.`, `List them: ${commandLine('jobs list')}`)
  if (others.length === 0) return first
  const candidates = [first, ...others, ...(page.next_cursor === null ? [] : ['…'])]
  throw new Failure(`${given} stands for several jobs. Give one id in full:`, candidates.join('\n'), EXIT.usage)
}

export async function jobIdsOf(connection: Connection, given: readonly string[]): Promise<string[]> {
  const ids: string[] = []
  for (const one of given) ids.push(await jobIdOf(connection, one))
  return ids
}
