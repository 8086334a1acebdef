import pg from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import type { Command } from '../../store/port.ts'
import { Gate } from '../store/gate.ts'
import { openNode } from '../store/store.ts'

export interface TwoNodes {
  a(): PostgresStore
  b(): PostgresStore
  url(): string
  gate(): Promise<Gate>
  /**
   * Node a has done everything of the first command but the commit when node b begins the second, which waits for it or
   * skips the locked rows.
   */
  meet<A, B>(first: Command<A>, second: Command<B>): Promise<[A, B]>
  /** The same for a second command that must not wait: it ends before the first command may commit. */
  pass<A, B>(first: Command<A>, second: () => Promise<B>): Promise<[A, B]>
}

/** Two nodes on one PostgreSQL database, open while the tests of a file run. */
export function twoNodes(): TwoNodes {
  let opened: { database: FreshDatabase; nodes: [PostgresStore, PostgresStore]; gates: pg.Client } | undefined
  beforeAll(async () => {
    const database = await freshDatabase()
    const gates = new pg.Client(database.url)
    await gates.connect()
    opened = { database, nodes: [await openNode(database.url), await openNode(database.url)], gates }
  })
  afterAll(async () => {
    for (const node of opened?.nodes ?? []) await node.close()
    await opened?.gates.end()
    await opened?.database.leave()
  })
  function open() {
    if (opened === undefined) throw new Error('The nodes are open while tests run')
    return opened
  }
  const [a, b, url] = [() => open().nodes[0], () => open().nodes[1], () => open().database.url]
  const gate = () => Gate.shut(open().gates)
  return {
    a,
    b,
    url,
    gate,
    async meet(first, second) {
      const held = await gate()
      const one = a().write(held.hold(first))
      await held.reached()
      const other = b().write(second)
      await Promise.race([held.someoneWaits(), other])
      await held.open()
      return Promise.all([one, other])
    },
    async pass(first, second) {
      const held = await gate()
      const one = a().write(held.hold(first))
      await held.reached()
      const other = await second()
      await held.open()
      return [await one, other]
    },
  }
}
