import { hash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { RedisLink } from './link.ts'

export interface ScriptCall {
  keys: string[]
  arguments: string[]
}

/** Redis knows scripts by their SHA until it restarts or is told to forget them. */
export class Script {
  readonly #text: string
  readonly #sha: string

  constructor(file: 'publish.lua' | 'route.lua') {
    this.#text = readFileSync(new URL(`../lua/${file}`, import.meta.url), 'utf8')
    this.#sha = hash('sha1', this.#text)
  }

  async run(link: RedisLink, call: ScriptCall): Promise<unknown> {
    try {
      return await link.call((redis) => redis.evalSha(this.#sha, call))
    } catch (error) {
      if (!isReply(error, 'NOSCRIPT')) throw error
      // It is known by its SHA from then on.
      return await link.call((redis) => redis.eval(this.#text, call))
    }
  }
}

/** Whether Redis refused with that word. */
export function isReply(error: unknown, word: string): boolean {
  return error instanceof Error && error.message.startsWith(word)
}
