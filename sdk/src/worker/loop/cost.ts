import { COST_MAX } from '../../protocol/index.ts'

export const COST_RULE = `a number from 0 to ${COST_MAX}`

/** Asked where it is said: the control plane would refuse any other, and the result that it comes with. */
export function isCost(amount: unknown): amount is number {
  return typeof amount === 'number' && amount >= 0 && amount <= COST_MAX
}
