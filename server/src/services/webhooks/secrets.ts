import { newStandardSecret } from '../../core/schedule/hook-signature.ts'
import type { Deps } from '../deps.ts'

const SECRET_BYTES = 32
/** After a rotation, messages are signed with both secrets for this long. */
export const SECRET_OVERLAP_MS = 24 * 3_600_000

export function newSecret(world: Deps['world']): string {
  return newStandardSecret(Buffer.from(world.secret(SECRET_BYTES), 'base64url'))
}
