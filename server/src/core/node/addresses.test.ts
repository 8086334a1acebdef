import { expect, test } from 'vitest'
import { addressGroup, addressProblem, serverUrls } from './addresses.ts'

test.each([
  ['192.0.2.1', '192.0.2.1'],
  ['::ffff:192.0.2.1', '192.0.2.1'],
  ['::ffff:c000:201', '192.0.2.1'],
  ['0:0:0:0:0:FFFF:192.0.2.1', '192.0.2.1'],
  ['2001:db8::1', '2001:db8:0:0::/64'],
  ['2001:DB8:0:0:ffff:ffff:ffff:ffff', '2001:db8:0:0::/64'],
  ['2001:db8:0:1::1', '2001:db8:0:1::/64'],
  ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
  ['2001:db8:1:2:3:4:192.0.2.1', '2001:db8:1:2::/64'],
  ['fe80::1%eth0', 'fe80:0:0:0::/64'],
  ['::', '0:0:0:0::/64'],
  ['::1', '0:0:0:0::/64'],
])('%s counts as %s', (address, group) => {
  expect(addressGroup(address)).toBe(group)
})

test.each([
  '',
  'unknown',
  '192.0.2',
  '192.0.2.256',
  '192.0.2.1:80',
  '1::2::3',
  '1:2:3:4:5:6:7',
  '1:2:3:4:5:6:7:8:9',
  '12345::',
])('%j is not an address', (text) => {
  expect(addressGroup(text)).toBeNull()
})

test('the address of one server stays exactly as it is', () => {
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

test('a comma in a password does not make a list of hosts', () => {
  expect(serverUrls('postgres://u:a,b@h/db')).toEqual(['postgres://u:a,b@h/db'])
})

test('only a server that accepts writes may be requested', () => {
  for (const target of ['any', 'read-write', 'primary']) {
    expect(addressProblem(`postgres://a,b/db?target_session_attrs=${target}`)).toBeNull()
  }
  expect(addressProblem('postgres://u:hunter2@a,b/db?target_session_attrs=standby')).toBe(
    'must not ask for target_session_attrs=standby: the store writes, so use read-write or leave it out',
  )
})
