import { StoreFull } from './store-full.ts'

/** The store cannot be reached, or did not answer in time. What was asked may or may not have happened. */
export class StoreUnavailable extends Error {
  override readonly name = 'StoreUnavailable'
}

/** Somebody keeps a row that a command of a batch needs, and nothing of it was done: its users are better served one by one. */
export class LockTimeout extends StoreUnavailable {}

/** It passes by itself, or when somebody makes room: the same can be asked again. */
export function isOutage(error: unknown): error is StoreUnavailable | StoreFull {
  return error instanceof StoreUnavailable || error instanceof StoreFull
}

/** The engine refused a value. In a batch it is some item's own fault, so the batch is split to find it. */
export class BadValue extends Error {
  override readonly name = 'BadValue'
}
