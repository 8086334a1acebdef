const DIGITS = '⁰¹²³⁴⁵⁶⁷⁸⁹'

/** 1,000,000 as 10⁶. Other numbers stay as they are. */
export function power(count: number): string {
  const exponent = Math.log10(count)
  return Number.isInteger(exponent) ? `10${DIGITS[exponent]}` : count.toLocaleString('en-US')
}
