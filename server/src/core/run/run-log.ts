export const LOG_STREAMS = ['stdout', 'stderr'] as const

/** The stream of a worker's process that a chunk of a log came from. */
export type LogStream = (typeof LOG_STREAMS)[number]
