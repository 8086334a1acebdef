import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import type { Ichido } from '../../library/api.ts'
import { embed } from '../../library/embed.ts'
import { type ControlNode, type Storage, startNode } from '../../node/start-node.ts'
import { realWorld } from '../../node/world.ts'
import { silentMeter } from '../../services/system/meter.ts'
import type { Row, SqlValue } from '../../store/statement.ts'
import { sql } from '../store/store.ts'
import { ENGINES, type Engine } from './services.ts'

/** Ichido as an application uses it, with access to its internals for the test. */
export interface Embedded extends Ichido {
  node: ControlNode
  /** Errors outside of any call. */
  troubles: unknown[]
  sql(text: string, ...params: SqlValue[]): Promise<Row[]>
}

export async function embedded(storage: Storage, world = realWorld): Promise<Embedded> {
  const troubles: unknown[] = []
  const onTrouble = (_: string, error: unknown) => troubles.push(error)
  const node = await startNode({ storage, world, meter: silentMeter, allowNoFsync: false, onTrouble })
  const { store } = node.services.deps
  return { ...embed(node, world, onTrouble), node, troubles, sql: (text, ...params) => sql(store, text, ...params) }
}

export interface GivenEngine {
  engine: Engine
  /** Shared by the suite, so each test uses its own kinds. */
  ichido(): Embedded
  /** An empty folder, or the suite's database. */
  storage(): Storage
}

/** Runs a suite once for each engine. */
export function eachEmbedded(suite: (given: GivenEngine) => void): void {
  describe.each(ENGINES)('%s', (engine) => {
    const folders: string[] = []
    let database: FreshDatabase | null = null
    let shared: Embedded | null = null

    function storage(): Storage {
      if (engine === 'postgres') return { databaseUrl: there(database).url }
      const dataDir = mkdtempSync(join(tmpdir(), 'ichido-open-'))
      folders.push(dataDir)
      return { dataDir }
    }

    beforeAll(async () => {
      if (engine === 'postgres') database = await freshDatabase()
      shared = await embedded(storage())
    })
    afterAll(async () => {
      await shared?.close({ drainMs: 0 })
      await database?.leave()
      for (const folder of folders) rmSync(folder, { recursive: true })
    })
    suite({ engine, storage, ichido: () => there(shared) })
  })
}

function there<T>(given: T | null): T {
  if (given === null) throw new Error('It is there while tests run')
  return given
}

/** The error that a promise was rejected with. */
export async function thrownBy(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    (answer) => Promise.reject(new Error(`It should have been refused, and was answered ${JSON.stringify(answer)}`)),
    (error: unknown) => error,
  )
}
