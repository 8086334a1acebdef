import {
  type HookRequest,
  type HookShape,
  IchidoError,
  NAME_PATTERN,
  NAME_RULE,
  type Page,
  type PutHookResponse,
} from '@ichido/sdk/protocol'
import { parseKey } from '../../core/keys/key.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { hookSecretProblem, type SignedDelivery, verifyDelivery } from '../../core/schedule/hook-signature.ts'
import * as store from '../../store/triggers/hooks.ts'
import type { Deps } from '../deps.ts'
import { iso } from '../iso.ts'
import { notFound } from '../not-found.ts'

/** What to record as a trigger, and whose it is; or why the delivery is not from whoever has the hook's secret. */
export type CheckedDelivery =
  | { kind: 'verified'; sender: Caller; topic: string; dedupeKey: string }
  | { kind: 'refused'; problem: string }

export interface HookService {
  /** Makes a hook or changes it; a secret that the server made is shown in this answer only. */
  put(caller: Caller, name: string, request: HookRequest): Promise<PutHookResponse>
  get(name: string): Promise<HookShape>
  list(limit: number, after: string | null): Promise<Page<HookShape>>
  remove(caller: Caller, name: string): Promise<void>
  check(name: string, sent: Omit<SignedDelivery, 'nowMs'>): Promise<CheckedDelivery>
}

const SECRET_BYTES = 32
/** Every hook was made by an operator or an admin, and triggers what they may run by hand. */
const SENDER_ROLE = 'operator'

export function createHookService({ world, store: db }: Pick<Deps, 'world' | 'store'>): HookService {
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  return {
    async put(caller, name, { scheme, topic, secret = null }) {
      const problem = secret === null ? null : hookSecretProblem(scheme, secret)
      if (problem !== null) throw invalid('secret', problem)
      const random = world.secret(SECRET_BYTES)
      const newSecret = scheme === 'standard' ? `whsec_${Buffer.from(random, 'base64url').toString('base64')}` : random
      const change = { id: world.uuid(), name, scheme, topic, secret, newSecret, userId: caller.userId }
      const outcome = await db.write(store.putHook(change, by(caller)))
      if (outcome.kind === 'secret_needed') {
        throw invalid(
          'secret',
          'is required to change the scheme, because the old secret does not work with the new scheme',
        )
      }
      return { ...render(outcome.hook), secret: outcome.isNew && secret === null ? outcome.hook.secret : null }
    },

    async get(name) {
      return render((await find(name)).hook)
    },

    async list(limit, after) {
      const { rows, next } = await db.read(store.listHooks(limit, after))
      return { data: rows.map(render), next_cursor: next }
    },

    async remove(caller, name) {
      if (!(await db.write(store.deleteHook(name, by(caller))))) throw notFound('hook', name)
    },

    async check(name, sent) {
      const { hook, nowMs } = await find(name)
      const verdict = verifyDelivery(hook.scheme, hook.secret, { ...sent, nowMs })
      if (verdict.kind === 'malformed') throw invalid(verdict.header, verdict.problem)
      if (verdict.kind === 'refused') return verdict
      const { deliveryId, idHeader, event } = verdict.delivery
      // Two hooks of one user may get the same id from two senders.
      const key = parseKey(`hook:${name}:${deliveryId}`)
      if (!key.ok) throw invalid(idHeader, `with "hook:${name}:" before it ${key.problem}`)
      const topic = event === null ? hook.topic : `${hook.topic}.${event}`
      if (!NAME_PATTERN.test(topic)) throw invalid('x-github-event', `with "${hook.topic}." before it ${NAME_RULE}`)
      return { kind: 'verified', sender: { userId: hook.userId, role: SENDER_ROLE }, topic, dedupeKey: key.key }
    },
  }

  async function find(name: string) {
    const found = await db.read(store.findHook(name))
    if (found === null) throw notFound('hook', name)
    return found
  }
}

function invalid(field: string, problem: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', `${field} ${problem}`, { field })
}

function render({ name, scheme, topic, userId, createdAtMs, updatedAtMs }: store.Hook): HookShape {
  return { name, scheme, topic, user_id: userId, created_at: iso(createdAtMs), updated_at: iso(updatedAtMs) }
}
