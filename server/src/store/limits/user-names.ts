import { type Command, command, commandIn } from '../port.ts'
import { each, query, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'

const NAME_SORTS = ['queue', 'domain', 'label'] as const

const sort = { oneOf: NAME_SORTS } as const
const NAME = { user_id: 'text', sort, name: 'text' } as const

/** Until this transaction ends, no other transaction adds names of these users. The users are sorted. */
const lockNames = statement('lock_user_names', {
  params: { user_id: 'text' },
  row: {},
  postgres: `SELECT count(pg_advisory_xact_lock(hashtextextended('ichido.user_names ' || t.user_id, 0)))
    FROM (SELECT user_id FROM unnest($user_id::text[]) AS t(user_id) ORDER BY user_id) t`,
  sqlite: [],
})

/** Counts the names of a user by sort. This is a separate statement: its snapshot must be younger than the lock. */
const countNames = statement('count_user_names', {
  params: { user_id: 'text', sort },
  row: { user_id: 'text', sort, count: 'integer' },
  postgres: `SELECT t.user_id, t.sort, (SELECT count(*) FROM ichido.user_names n
      WHERE n.user_id = t.user_id AND n.sort = t.sort) AS count
    FROM unnest($user_id::text[], $sort::text[]) AS t(user_id, sort)`,
  sqlite: `SELECT $user_id AS user_id, $sort AS sort, count(*) AS count FROM ichido.user_names
    WHERE user_id = $user_id AND sort = $sort`,
})

/** The names that the user has already. */
const readNames = statement('read_user_names', {
  params: NAME,
  row: NAME,
  postgres: `SELECT n.user_id, n.sort, n.name
    FROM unnest($user_id::text[], $sort::text[], $name::text[]) AS t(user_id, sort, name)
    JOIN ichido.user_names n USING (user_id, sort, name)`,
  sqlite:
    'SELECT user_id, sort, name FROM ichido.user_names WHERE user_id = $user_id AND sort = $sort AND name = $name',
})

const noteNames = statement('note_user_names', {
  params: NAME,
  row: {},
  postgres: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at)
    SELECT t.*, now_ms() FROM unnest($user_id::text[], $sort::text[], $name::text[]) t
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
  sqlite: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at) VALUES ($user_id, $sort, $name, now_ms())
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
})

/** Removes names that were not used for `age_ms`. */
const deleteNames = statement('remove_user_names', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { name: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT n.ctid AS place FROM l CROSS JOIN ichido.user_names n WHERE n.seen_at < (SELECT now_ms()) - CAST($age_ms AS bigint)
      ORDER BY n.seen_at LIMIT $max FOR UPDATE OF n SKIP LOCKED)
    DELETE FROM ichido.user_names WHERE ctid IN (SELECT place FROM c) RETURNING name`,
  sqlite: `DELETE FROM ichido.user_names WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.user_names WHERE seen_at < now_ms() - $age_ms ORDER BY seen_at LIMIT $max) RETURNING name`,
})

export type NameSort = (typeof NAME_SORTS)[number]

export interface UserName {
  userId: string
  sort: NameSort
  name: string
}

/** The names of one job or definition. */
type Naming = readonly UserName[]

/** How many names of each sort one user may have. */
type NamesMax = Readonly<Record<NameSort, number>>

/**
 * Adds names to their users. For each naming it returns the first name that exceeds the maximum, or null; a refused
 * naming adds no names. Other transactions cannot add names of these users until this one ends.
 */
export function claimNames(namings: readonly Naming[], max: NamesMax): Command<(UserName | null)[]> {
  return commandIn('batches', 'claim_user_names', function* work(): Work<(UserName | null)[]> {
    const names = new Map(namings.flat().map((name) => [textOf(name), name]))
    const users = [...new Set(namings.flat().map(({ userId }) => userId))].sort()
    yield* each(
      lockNames,
      users.map((user_id) => ({ user_id })),
    )
    const groups = new Map(namings.flat().map((name) => [groupOf(name), { user_id: name.userId, sort: name.sort }]))
    const counts = new Map<string, number>()
    for (const row of yield* each(countNames, [...groups.values()])) {
      counts.set(`${row.user_id}\n${row.sort}`, row.count)
    }
    const known = new Set<string>()
    for (const row of yield* each(readNames, [...names.values()].map(toRow))) {
      known.add(`${row.user_id}\n${row.sort}\n${row.name}`)
    }

    const claimed = new Map<string, UserName>()
    const isNew = (name: UserName) => !known.has(textOf(name)) && !claimed.has(textOf(name))
    const answers = namings.map((naming) => {
      const left = new Map(naming.map((name) => [groupOf(name), max[name.sort] - (counts.get(groupOf(name)) ?? 0)]))
      for (const name of naming.filter(isNew)) {
        const places = left.get(groupOf(name)) ?? 0
        if (places < 1) return name
        left.set(groupOf(name), places - 1)
      }
      for (const name of naming) {
        if (isNew(name)) counts.set(groupOf(name), (counts.get(groupOf(name)) ?? 0) + 1)
        claimed.set(textOf(name), name)
      }
      return null
    })
    yield* each(noteNames, [...claimed.values()].map(toRow))
    return answers
  })
}

export function removeNames(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_user_names', function* work(): Work<number> {
    return (yield* query(deleteNames, { ...term, max, age_ms: ageMs })).length
  })
}

const toRow = ({ userId, sort, name }: UserName) => ({ user_id: userId, sort, name })

/** No part contains a line break. */
const groupOf = ({ userId, sort }: UserName) => `${userId}\n${sort}`
const textOf = (name: UserName) => `${groupOf(name)}\n${name.name}`
