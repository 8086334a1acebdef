import { IchidoError, type Role } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { csrfToken, read, send } from './call.ts'
import { queryClient } from './queries.ts'

/** Who uses the page, and what the server lets this user do. */
export interface Session {
  user_id: string
  role: Role
  abilities: Ability[]
  expires_at: string | null
  csrf_token: string | null
  /** The server needs no credentials yet. */
  open: boolean
}

export type Ability = 'readAll' | 'readOwn' | 'submit' | 'operate' | 'administer'

const STUB: Session = {
  user_id: 'local',
  role: 'admin',
  abilities: ['readAll', 'readOwn', 'submit', 'operate', 'administer'],
  expires_at: null,
  csrf_token: null,
  open: true,
} // REMOVE
const KEY = ['session']

async function readSession(): Promise<Session | null> {
  try {
    const session = await read<Session>('/v1/session')
    csrfToken.value = session.csrf_token
    return session
  } catch (error) {
    if (error instanceof IchidoError && error.code === 'UNAUTHENTICATED') return null
    if (error instanceof IchidoError && error.code === 'NOT_FOUND') return STUB // REMOVE: until sign-in is merged
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
  signedOut()
}

/** Forgets everything that the last session has read. */
export function signedOut(): void {
  csrfToken.value = null
  queryClient.clear()
  queryClient.setQueryData(KEY, null)
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
