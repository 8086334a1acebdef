import { IchidoError, type SessionShape } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { csrfToken, read, send } from './call.ts'
import { queryClient } from './queries.ts'

export type Session = SessionShape
export type Ability = SessionShape['abilities'][number]

const KEY = ['session']

async function readSession(): Promise<Session | null> {
  try {
    const session = await read<Session>('/v1/session')
    csrfToken.value = session.csrf_token
    return session
  } catch (error) {
    if (error instanceof IchidoError && error.code === 'UNAUTHENTICATED') return null
    throw error
  }
}

/** Null: the visitor must sign in. */
export function useSession() {
  return useQuery({ queryKey: KEY, queryFn: readSession, staleTime: 60_000 })
}

export async function signIn(token: string): Promise<void> {
  const session = await send<Session>('POST', '/v1/session', { token })
  csrfToken.value = session.csrf_token
  queryClient.setQueryData(KEY, session)
}

export async function signOut(): Promise<void> {
  await send('DELETE', '/v1/session')
  csrfToken.value = null
  queryClient.setQueryData(KEY, null)
  // The next visitor of this browser sees nothing of the last one.
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
