export const EVICTS_ADVICE =
  'Set maxmemory-policy to noeviction, and give Ichido its own Redis: dropped events are read from the store, which is slower.'

/** Of one server. */
export interface MemoryPolicy {
  /** It drops keys when its memory is used up. */
  evicts: boolean
  /** Its memory is used up, and it drops nothing. */
  full: boolean
  /** As Redis calls it. */
  policy: string
}

/** From the section `memory` of INFO, which managed services and tight ACLs allow more often than CONFIG GET. */
export function readMemoryPolicy(info: string): MemoryPolicy {
  const read = (name: string) => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1]?.trim() ?? ''
  const policy = read('maxmemory_policy')
  const bounded = Number(read('maxmemory')) > 0
  const evicts = bounded && policy !== 'noeviction'
  return { evicts, full: bounded && !evicts && Number(read('used_memory')) >= Number(read('maxmemory')), policy }
}
