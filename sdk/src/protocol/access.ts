export const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const
export type Role = (typeof ROLES)[number]

export interface TokenShape {
  token_id: string
  user_id: string
  role: Role
  name: string
  created_at: string
  expires_at: string | null
  revoked_at: string | null
}
