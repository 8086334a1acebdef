import { type Command, command } from '../port.ts'
import { each, query, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
import * as sql from './user-names.sql.ts'

export type NameSort = (typeof sql.NAME_SORTS)[number]

export interface UserName {
  userId: string
  sort: NameSort
  name: string
}

/** The names of one job or definition. */
export type Naming = readonly UserName[]

/** How many names of each sort one user may have. */
export type NamesMax = Readonly<Record<NameSort, number>>

/**
 * Adds names to those that their users have. The answer is, for each naming, its first name that would be one too many, or
 * null; such a naming adds none of its names. Nobody else adds names of these users until the transaction ends.
 */
export function claimNames(namings: readonly Naming[], max: NamesMax): Command<(UserName | null)[]> {
  return command('claim_user_names', function* work(): Work<(UserName | null)[]> {
    const names = new Map(namings.flat().map((name) => [textOf(name), name]))
    const users = [...new Set(namings.flat().map(({ userId }) => userId))].sort()
    yield* each(
      sql.lockNames,
      users.map((user_id) => ({ user_id })),
    )
    const groups = new Map(namings.flat().map((name) => [groupOf(name), { user_id: name.userId, sort: name.sort }]))
    const counts = new Map<string, number>()
    for (const row of yield* each(sql.countNames, [...groups.values()])) {
      counts.set(`${row.user_id}\n${row.sort}`, row.count)
    }
    const known = new Set<string>()
    for (const row of yield* each(sql.readNames, [...names.values()].map(toRow))) {
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
    yield* each(sql.noteNames, [...claimed.values()].map(toRow))
    return answers
  })
}

export function removeNames(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_user_names', function* work(): Work<number> {
    return (yield* query(sql.removeNames, { ...term, max, age_ms: ageMs })).length
  })
}

const toRow = ({ userId, sort, name }: UserName) => ({ user_id: userId, sort, name })

/** No part can hold a line break. */
const groupOf = ({ userId, sort }: UserName) => `${userId}\n${sort}`
const textOf = (name: UserName) => `${groupOf(name)}\n${name.name}`
