import { type Command, command } from '../port.ts'
import { addSecret, readSecret } from '../sql/secrets.ts'
import { one, query, text, type Work } from '../statement.ts'

/** What all nodes share: the one that was kept first, whoever brought it. */
export function keepSecret(name: string, secret: string): Command<string> {
  return command('keep_secret', function* work(): Work<string> {
    yield* query(addSecret, name, JSON.stringify(secret))
    return String(JSON.parse(text(yield* one(readSecret, name), 'value')))
  })
}
