import { expect, test } from 'vitest'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import { IchidoError } from '../../../protocol/index.ts'
import { Trouble } from './trouble.ts'

function troubled() {
  const world = new FakeWorld()
  const said: string[] = []
  const failed: string[] = []
  const trouble = new Trouble({ say: (line) => said.push(line), fail: (why) => failed.push(why), world })
  return { world, said, failed, trouble }
}

const away = () => new IchidoError('UNAVAILABLE', 'ECONNREFUSED')

test('each trouble is said once a minute at most', async () => {
  const { world, said, trouble } = troubled()
  for (let i = 0; i < 3; i++) trouble.on(away())
  trouble.on(new Error('another'))
  await world.pass(59_999)
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'trouble: another'])
  await world.pass(1)
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'trouble: another', 'trouble: ECONNREFUSED'])
})

test('when the control plane answers again, that is said once, and the next outage at once', () => {
  const { said, trouble } = troubled()
  trouble.over()
  trouble.on(away())
  trouble.over()
  trouble.over()
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'the control plane answers again', 'trouble: ECONNREFUSED'])
})

test('what the control plane refuses is no outage; a worker that is refused for good gives up', () => {
  const { said, failed, trouble } = troubled()
  trouble.on(new IchidoError('FORBIDDEN', 'revoked'))
  trouble.over()
  expect(said).toEqual(['trouble: revoked'])
  expect(failed).toEqual(['revoked'])
})
