/** How many streams the events of a domain are spread over, as S4 has it. */
export const DEFAULT_SHARDS = 4
/** A router keeps a connection for each. */
export const SHARDS_MAX = 64
