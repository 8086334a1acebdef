import type { IncomingMessage } from 'node:http'
import type { World } from '@ichido/sdk/world'

const SANE = /^[\x21-\x7e]{1,128}$/

/** The caller's own id where it is fit to be logged and echoed, else a new one. */
export function requestId({ headers }: Pick<IncomingMessage, 'headers'>, world: Pick<World, 'uuid'>): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && SANE.test(given) ? given : world.uuid()
}
