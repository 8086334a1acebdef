import { expect, test } from 'vitest'
import { addressProblem, serverUrls } from './database-address.ts'

test('an address of one server stays as it is, letter by letter', () => {
  for (const address of [
    'postgres://u:p@h/db',
    'postgresql://u:p%40ss@h:5433/db?sslmode=verify-full&target_session_attrs=read-write',
    'postgres://u@localhost:5432/db?host=%2Ftmp%2Fpg',
    'postgres:///db',
    'socket:/tmp/pg?db=x',
  ]) {
    expect(serverUrls(address)).toEqual([address])
  }
})

test('an address of several servers becomes one for each, in their order', () => {
  expect(serverUrls('postgres://u:p%2C%40@a:1,b,[::1]:3/db?target_session_attrs=read-write')).toEqual([
    'postgres://u:p%2C%40@a:1/db',
    'postgres://u:p%2C%40@b/db',
    'postgres://u:p%2C%40@[::1]:3/db',
  ])
  expect(serverUrls('postgresql://a,b/db?sslmode=verify-full&target_session_attrs=primary')).toEqual([
    'postgresql://a/db?sslmode=verify-full',
    'postgresql://b/db?sslmode=verify-full',
  ])
})

test('hosts and ports may be parameters too', () => {
  expect(serverUrls('postgres://u@/db?host=%2Fa,%2Fb&port=1,2')).toEqual([
    'postgres://u@localhost/db?host=%2Fa&port=1',
    'postgres://u@localhost/db?host=%2Fb&port=2',
  ])
  expect(serverUrls('postgres://a,b/db?port=6000')).toEqual(['postgres://a/db?port=6000', 'postgres://b/db?port=6000'])
})

test('a comma in a password makes no list of hosts', () => {
  expect(serverUrls('postgres://u:a,b@h/db')).toEqual(['postgres://u:a,b@h/db'])
})

test('only servers that write may be asked for', () => {
  for (const target of ['any', 'read-write', 'primary']) {
    expect(addressProblem(`postgres://a,b/db?target_session_attrs=${target}`)).toBeNull()
  }
  expect(addressProblem('postgres://u:hunter2@a,b/db?target_session_attrs=standby')).toBe(
    'must not ask for target_session_attrs=standby: the store writes, so use read-write or leave it out',
  )
})
