import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Fatal, messageOf } from '../loop/failure.ts'
import type { Outcome, RunInHand } from '../loop/loop.ts'
import type { PublisherDeps } from '../loop/progress.ts'
import { type Handler, handleRun } from '../worker.ts'
import { BadOptions } from './bad-options.ts'

/** Handlers by the kind of job that they are for: what a handlers file exports as its default. */
export type Handlers = ReadonlyMap<string, Handler<unknown, unknown>>

export async function loadHandlers(file: string): Promise<Handlers> {
  const { default: exported } = await load(resolve(file), file)
  const entries = typeof exported === 'object' && exported !== null ? Object.entries(exported) : []
  const handlers = entries.filter((entry): entry is [string, Handler<unknown, unknown>] => {
    return typeof entry[1] === 'function'
  })
  if (handlers.length === 0 || handlers.length < entries.length) {
    throw new BadOptions(
      `--handlers: ${file} must export an object of functions as its default: { kind: (run) => result, … }`,
    )
  }
  return new Map(handlers)
}

/** A module that is not there or does not load is told in a sentence. */
async function load(path: string, file: string): Promise<{ default?: unknown }> {
  if (!existsSync(path)) throw new BadOptions(`--handlers: there is no file ${path}`)
  try {
    return (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    const [why = ''] = messageOf(error).split('\n')
    throw new BadOptions(`--handlers: ${file} could not be loaded: ${why}`, { cause: error })
  }
}

/** Hands each lease to the handler of its kind. */
export function handlersWork(handlers: Handlers, deps: PublisherDeps): (run: RunInHand) => Promise<Outcome> {
  const unknown = () => {
    throw new Fatal('UNKNOWN_KIND', 'This worker has no handler for this kind')
  }
  return (run) => handleRun({ options: {} }, handlers.get(run.lease.kind) ?? unknown, run, deps)
}
