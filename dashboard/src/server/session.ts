import { IchidoError, type SessionShape } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { csrfToken, read, send } from './call.ts'
import { queryClient } from './queries.ts'

export type Session = SessionShape
export type Ability = SessionShape['abilities'][number]

const KEY = ['session']

async function readSession(signal: AbortSignal): Promise<Session | null> {
  const before = queryClient.getQueryData<Session | null>(KEY)
  const session = await read<Session>('/v1/session', signal).catch((error: unknown) => {
    if (error instanceof IchidoError && error.code === 'UNAUTHENTICATED') return null
    throw error
  })
  // The session has ended, or another one began in another tab.
  if (session?.csrf_token !== before?.csrf_token) forget()
  if (session !== null) csrfToken.value = session.csrf_token
  return session
}

/** Null: the visitor must sign in. */
export function useSession() {
  const queryFn = ({ signal }: { signal: AbortSignal }) => readSession(signal)
  return useQuery({ queryKey: KEY, queryFn, staleTime: 60_000, refetchOnWindowFocus: 'always' })
}

export async function signIn(token: string): Promise<void> {
  const session = await send<Session>('POST', '/v1/session', { token })
  await change(session)
}

export async function signOut(): Promise<void> {
  await send('DELETE', '/v1/session')
  await change(null)
}

/** An answer about the session before may still be on its way. */
async function change(session: Session | null): Promise<void> {
  await queryClient.cancelQueries({ queryKey: KEY })
  csrfToken.value = session?.csrf_token ?? null
  queryClient.setQueryData(KEY, session)
  forget()
}

/** The next visitor of this browser sees nothing of the last one. */
function forget(): void {
  queryClient.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== KEY[0] })
}

/** True if the server lets the visitor do this, so that the page offers nothing that would be refused. */
export function useCan(ability: Ability): boolean {
  return useSession().data?.abilities.includes(ability) ?? false
}

/** True if the visitor may change the data of this user. */
export function useMayChange(userId: string): boolean {
  const session = useSession().data
  if (session === null || session === undefined) return false
  return session.abilities.includes('operate') || (session.abilities.includes('submit') && session.user_id === userId)
}
