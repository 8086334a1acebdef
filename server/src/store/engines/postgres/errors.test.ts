import { expect, test } from 'vitest'
import { isConnectionLoss, isReadOnly } from './errors.ts'

const failed = (code: string, routine?: string) => Object.assign(new Error('refused'), { code, routine })

test.each(['25006', '57P01', '57P02', '57P03', '57P05', '08006', '08P01', '53300', '25P03', 'ECONNREFUSED'])(
  '%s is the store being away',
  (code) => expect(isConnectionLoss(failed(code))).toBe(true),
)

test('0A000 is an outage only for BEGIN READ WRITE on a standby', () => {
  const onStandby = failed('0A000', 'call_bool_check_hook')
  expect([isReadOnly(onStandby), isConnectionLoss(onStandby)]).toEqual([true, true])
  expect(isConnectionLoss(failed('0A000', 'RevalidateCachedQuery'))).toBe(false)
})

test.each(['22021', '23505', '40001', '55P03', '42P01', '57014'])('%s is not', (code) =>
  expect(isConnectionLoss(failed(code))).toBe(false),
)
