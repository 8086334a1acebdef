import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { BadValue } from '../../../src/core/node/store-errors.ts'
import { openSqlite } from '../../../src/store/engines/sqlite/sqlite.ts'
import { findJobs } from '../../../src/store/jobs/read-jobs.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import { Scene } from '../../../src/testing/store/scene.ts'

/** Hazard 1: a rollback of one request on SQLite must not undo the accepted job of another request. */
test('refused and failing submits undo no accepted job, even after a restart', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-h01-'))
  const store = openSqlite({ dataDir, now: () => Date.now() })
  const [free, full] = [new Scene(store), new Scene(store)]
  await store.write(setQuota(full.userId, { maxConcurrent: 3, costLimitMicros: null, period: 'day' }))
  const taken = await free.submitted()

  const calls = Array.from({ length: size(600, 12_000) }, async (_, i) => {
    // Each call yields before and after its submit, so that transactions would mix if they could.
    await new Promise((resolve) => setImmediate(resolve))
    if (i % 3 === 0) return free.submit({ key: `k${i}` })
    if (i % 3 === 1) return full.submit()
    return free.submit({ jobId: taken }).catch((error: unknown) => error)
  })
  const answers = await Promise.all(calls)

  const failed = answers.filter((answer) => answer instanceof BadValue)
  const outcomes = answers.flatMap((answer) => (isOutcome(answer) ? [answer] : []))
  const accepted = outcomes.flatMap((outcome) => (outcome.kind === 'created' ? [outcome.jobId] : []))
  expect(failed).toHaveLength(calls.length / 3)
  expect(outcomes.filter(({ kind }) => kind === 'refused')).toHaveLength(calls.length / 3 - 3)
  expect(accepted).toHaveLength(calls.length / 3 + 3)
  expect(await store.read(findJobs(accepted))).toHaveLength(accepted.length)
  await store.close()

  const reopened = openSqlite({ dataDir, now: () => Date.now() })
  expect(await reopened.read(findJobs(accepted))).toHaveLength(accepted.length)
  await reopened.close()
  rmSync(dataDir, { recursive: true })
})

type Outcome = Awaited<ReturnType<Scene['submit']>>

function isOutcome(answer: unknown): answer is Outcome {
  return typeof answer === 'object' && answer !== null && 'kind' in answer
}
