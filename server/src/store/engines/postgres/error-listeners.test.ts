import pg from 'pg'
import { expect, test } from 'vitest'
import { ErrorListeners } from './error-listeners.ts'

const client = () => new pg.Client() as pg.Client & pg.PoolClient
const count = (one: pg.Client) => one.listenerCount('error')

test('a connection in use keeps its listener until it is given back', () => {
  const listeners = new ErrorListeners()
  const [idle, used, late] = [client(), client(), client()]
  listeners.add(idle)
  for (let i = 0; i < 3; i++) listeners.use(used)
  expect([idle, used].map(count)).toEqual([1, 1])
  listeners.stop()
  expect([idle, used].map(count)).toEqual([0, 1])
  listeners.use(late)
  expect(count(late)).toBe(1)
  for (const one of [used, late]) listeners.giveBack(one)
  expect([used, late].map(count)).toEqual([0, 0])
})
