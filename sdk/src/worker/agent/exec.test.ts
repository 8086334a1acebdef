import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import { Heart } from '../heart.ts'
import type { Outcome } from '../loop.ts'
import { LEASE, Plane, unavailable } from '../testing/plane.ts'
import { execWork } from './exec.ts'
import { RunFolders } from './run-folder.ts'
import { machineClocks, nodeWorld } from './world.ts'

const SUPERVISOR = [process.execPath, ...nodeArgs, join(import.meta.dirname, 'main.ts'), 'supervise'] as const
const WITHIN = { timeout: 15_000, interval: 20 }

let root: string
let folders: RunFolders
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ichido-exec-'))
  folders = new RunFolders(root, true)
})
afterEach(() => rmSync(root, { recursive: true }))

/** Runs a program whose log is taken only when the test lets it be. */
function work(command: string, log: () => Promise<void>): Promise<Outcome> {
  const transport = Object.assign(new Plane(), { log, detach: async () => {} })
  const artifacts = { async fetchAll() {}, async sendAll() {} }
  const deps = { command, supervisor: SUPERVISOR, folders, transport, artifacts, world: nodeWorld, onTrouble() {} }
  const lease = { ...LEASE, lease_id: `exec-${process.pid}-${root}` }
  const run = new AbortController()
  const heart = new Heart({ world: nodeWorld, clocks: machineClocks, transport, onTrouble() {} })
  const hold = heart.hold(lease, machineClocks(), run)
  return execWork(deps)({ lease, signal: run.signal, hold, slot: 0, ended: () => hold.runEnded() }).finally(() =>
    hold.letGo(),
  )
}

test.each([
  ['a result', `echo '{"answer":42}' > $ICHIDO_RESULT_FILE`, { result: { result: { answer: 42 } } }],
  ['a failure', 'echo no luck >&2; exit 3', { failure: { code: 'EXIT_3', traceback: 'no luck\n' } }],
])('%s is on disk before the last lines of its log, for which nobody is there', async (_, command, expected) => {
  let reachable = false
  const done = work(`echo working; ${command}`, async () => {
    if (!reachable) throw unavailable()
  })
  const kept = await vi.waitFor(() => {
    const [found] = folders.leftovers().kept
    expect(found).toBeDefined()
    return found
  }, WITHIN)
  expect(kept?.report).toMatchObject(expected)
  expect(await Promise.race([done, 'not told yet'])).toBe('not told yet')
  reachable = true
  expect(await done).toMatchObject(expected)
})
