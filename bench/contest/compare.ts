import { median } from '../measure.ts'
import { type Comparison, isRate, type Target, type Unit } from '../report/comparison.ts'
import { FORMS, type Name, OURS, OURS_SQLITE, PEERS } from './field.ts'

type Peer = (typeof PEERS)[number]

/** `best`: the best of all peers. `sql`: the best of those on PostgreSQL. */
type Targets = Partial<Record<Peer | 'best' | 'sql', Target>>

/** One value per round, by contestant. */
export type Found = Partial<Record<Name, readonly number[]>>

export interface Workload {
  what: string
  unit: Unit
  found: Found
  /** By the form of Ichido that must reach them. */
  targets?: { http?: Targets; ours?: Targets }
  /** Peers that do less than the workload asks. */
  notes?: Partial<Record<Peer, string>>
}

const SQL: readonly Peer[] = ['boss', 'graphile']
const PLACES = { http: 'over HTTP', ours: 'in process', sqliteHttp: 'over HTTP, SQLite', sqlite: 'in process, SQLite' }

/**
 * The rows of one workload. Ichido on PostgreSQL stands beside each peer and its limit. On SQLite it stands beside itself on
 * PostgreSQL and its limit.
 */
export function compare({ what, unit, found, targets = {}, notes = {} }: Workload): Comparison[] {
  const beside = (mine: (typeof OURS)[number] | (typeof OURS_SQLITE)[number], other: Name) => {
    const [ours, theirs] = [found[mine], found[other]]
    if (ours === undefined || theirs === undefined) return []
    return [{ what: `${what}, ${PLACES[mine]}`, unit, ours, against: FORMS[other].label, theirs }]
  }
  const onPostgres = OURS.flatMap((mine) => [
    ...PEERS.flatMap((peer) =>
      beside(mine, peer).map(
        (row): Comparison => ({
          ...row,
          rival: 'peer',
          target: targetFor(peer, found, unit, targets[mine] ?? {}),
          note: notes[peer] ?? FORMS[peer].lacks,
        }),
      ),
    ),
    ...beside(mine, 'floor').map((row): Comparison => ({ ...row, rival: 'limit', target: null })),
  ])
  const onSqlite = OURS_SQLITE.flatMap((mine) => [
    ...beside(mine, mine === 'sqlite' ? 'ours' : 'http').map(
      (row): Comparison => ({ ...row, rival: 'self', target: isRate(unit) ? { least: 1 } : { most: 1 } }),
    ),
    ...beside(mine, 'sqliteFloor').map((row): Comparison => ({ ...row, rival: 'limit', target: null })),
  ])
  return [...onPostgres, ...onSqlite]
}

/** A peer that is also the best has to be compared by the stricter of both targets. */
function targetFor(peer: Peer, found: Found, unit: Unit, targets: Targets): Target | null {
  const given = [
    targets[peer],
    peer === bestOf(PEERS, found, unit) ? targets.best : undefined,
    peer === bestOf(SQL, found, unit) ? targets.sql : undefined,
  ].filter((target) => target !== undefined)
  const least = given.flatMap((target) => ('least' in target ? [target.least] : []))
  const most = given.flatMap((target) => ('most' in target ? [target.most] : []))
  if (least.length > 0) return { least: Math.max(...least) }
  return most.length > 0 ? { most: Math.min(...most) } : null
}

function bestOf(peers: readonly Peer[], found: Found, unit: Unit): Peer | undefined {
  const value = (peer: Peer) => median(found[peer] ?? [Number.NaN]) * (isRate(unit) ? 1 : -1)
  return peers.filter((peer) => found[peer] !== undefined).toSorted((a, b) => value(b) - value(a))[0]
}
