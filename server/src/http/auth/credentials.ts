import type { IncomingHttpHeaders } from 'node:http'

/** What a request says about its sender: a token, nothing at all, or something that cannot be read as a token. */
export type Credentials = { kind: 'token'; token: string } | { kind: 'none' } | { kind: 'unreadable'; problem: string }

const NONE: Credentials = { kind: 'none' }
const TOKEN = /^[\x21-\x7e]+$/

/**
 * The only place that reads a token from the headers of a request. Node keeps the first of several Authorization headers,
 * and joins several X-API-Key headers with a comma and a space, which no token has.
 */
export function credentialsOf(headers: IncomingHttpHeaders): Credentials {
  const { authorization, 'x-api-key': apiKey } = headers
  const fromAuthorization = authorization === undefined ? NONE : readAuthorization(authorization)
  if (apiKey === undefined || fromAuthorization.kind === 'unreadable') return fromAuthorization
  const fromApiKey = readToken(String(apiKey).trim(), 'X-API-Key must be one token')
  if (fromAuthorization.kind === 'none' || fromApiKey.kind !== 'token') return fromApiKey
  if (fromApiKey.token === fromAuthorization.token) return fromApiKey
  return unreadable('Authorization and X-API-Key carry different tokens; send one of them')
}

/** Undefined: there is none, or none that can be read. */
export function sentToken(headers: IncomingHttpHeaders): string | undefined {
  const credentials = credentialsOf(headers)
  return credentials.kind === 'token' ? credentials.token : undefined
}

function readAuthorization(header: string): Credentials {
  const [, scheme = '', value = ''] = /^(\w+) +(\S+) *$/.exec(header) ?? []
  switch (scheme.toLowerCase()) {
    case 'bearer':
      return readToken(value, BAD_AUTHORIZATION)
    case 'basic': {
      const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(value, 'base64').toString('utf8')) ?? []
      return readToken(password, 'HTTP Basic must have the token as its password, with any user name')
    }
    default:
      return unreadable(BAD_AUTHORIZATION)
  }
}

const BAD_AUTHORIZATION = 'Authorization must be Bearer <token>, or Basic with the token as the password'

function readToken(text: string, problem: string): Credentials {
  return TOKEN.test(text) ? { kind: 'token', token: text } : unreadable(problem)
}

function unreadable(problem: string): Credentials {
  return { kind: 'unreadable', problem }
}
