import { expect, test } from 'vitest'
import { type Ability, can, type Role, visibleUser } from './roles.ts'

const ABILITIES: Ability[] = ['readAll', 'readOwn', 'submit', 'operate', 'administer']

test.each<[Role, Ability[], string | null]>([
  ['viewer', ['readAll', 'readOwn'], null],
  ['submitter', ['readOwn', 'submit'], 'ann'],
  ['operator', ['readAll', 'readOwn', 'submit', 'operate'], null],
  ['admin', ['readAll', 'readOwn', 'submit', 'operate', 'administer'], null],
])('a %s may %j', (role, abilities, limitedTo) => {
  const caller = { userId: 'ann', role }
  expect(ABILITIES.filter((ability) => can(caller, ability))).toEqual(abilities)
  expect(visibleUser(caller)).toBe(limitedTo)
})
