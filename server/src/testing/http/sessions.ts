import type { SessionShape } from '@ichido/sdk/protocol'
import type { Answer, TestApp } from './app.ts'

export const setCookieOf = ({ headers }: Answer) => String(headers['set-cookie'])

export interface SignedIn {
  /** Headers of a request from the server's own page. */
  cookie: { cookie: string }
  page: { cookie: string; 'ichido-csrf': string }
  body: SessionShape
  secret: string
}

/** Signs in as a browser does. */
export async function signIn(http: TestApp, token: string, path = '/v1/session', headers = {}): Promise<SignedIn> {
  const answer = await http.call('POST', path, { body: { token }, headers })
  if (answer.status !== 200) throw new Error(answer.text)
  const [pair = ''] = setCookieOf(answer).split(';')
  const body = answer.body as SessionShape
  const cookie = { cookie: `theme=dark; ${pair}; other=1` }
  return { cookie, page: { ...cookie, 'ichido-csrf': body.csrf_token ?? '' }, body, secret: pair.split('=')[1] ?? '' }
}
