/** Set by `npm run test:full`. */
export const full = process.env.ICHIDO_TEST_FULL === '1'

/** A must-hold test's number: small in `npm test`, the stated one in `npm run test:full`. */
export const size = (small: number, stated: number): number => (full ? stated : small)
