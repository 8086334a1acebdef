export const EVICTS_ADVICE =
  'Set maxmemory-policy to noeviction, and give Ichido its own Redis: dropped events are read from the store, which is slower.'

/** The memory policy of one server. */
export interface MemoryPolicy {
  /** The server drops keys when its memory is full. */
  evicts: boolean
  /** The memory is full, and the server drops nothing. */
  full: boolean
  /** The name that Redis has for the policy. */
  policy: string
}

/** Reads the section `memory` of INFO. Managed services and strict ACLs allow it more often than CONFIG GET. */
export function readMemoryPolicy(info: string): MemoryPolicy {
  const read = (name: string) => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1]?.trim() ?? ''
  const policy = read('maxmemory_policy')
  const bounded = Number(read('maxmemory')) > 0
  const evicts = bounded && policy !== 'noeviction'
  return { evicts, full: bounded && !evicts && Number(read('used_memory')) >= Number(read('maxmemory')), policy }
}
