/** Checks of stored JSON. A value is returned as it was parsed: it is not copied, and its members keep their order. */
export type Check<T> = (value: unknown) => value is T

export const isText: Check<string> = (value) => typeof value === 'string'
export const isNumber: Check<number> = (value) => typeof value === 'number'
export const isFlag: Check<boolean> = (value) => typeof value === 'boolean'

export const isOneOf =
  <T extends string>(list: readonly T[]): Check<T> =>
  (value): value is T =>
    (list as readonly unknown[]).includes(value)

export const orNull =
  <T>(check: Check<T>): Check<T | null> =>
  (value): value is T | null =>
    value === null || check(value)

export const orMissing =
  <T>(check: Check<T>): Check<T | undefined> =>
  (value): value is T | undefined =>
    value === undefined || check(value)

export const isListOf =
  <T>(check: Check<T>): Check<T[]> =>
  (value): value is T[] =>
    Array.isArray(value) && value.every(check)

export const isMapOf =
  <T>(check: Check<T>): Check<Record<string, T>> =>
  (value): value is Record<string, T> =>
    isObject(value) && Object.values(value).every(check)

/** Other members are allowed: a newer version may have written them. */
export const isObjectOf =
  <T extends object>(members: { readonly [Name in keyof T]-?: Check<T[Name]> }): Check<T> =>
  (value): value is T => {
    if (!isObject(value)) return false
    for (const name in members) if (!members[name](value[name])) return false
    return true
  }

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Reads a column of a statement, and throws if the value is malformed. */
export function stored<T>(name: string, check: Check<T>): (value: unknown) => T {
  return (value) => {
    if (check(value)) return value
    throw new TypeError(`The stored ${name} is malformed`)
  }
}
