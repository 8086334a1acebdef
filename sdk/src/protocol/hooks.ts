/** How a sender signs its webhooks: Standard Webhooks, or GitHub's `X-Hub-Signature-256`. */
export const HOOK_SCHEMES = ['standard', 'github'] as const
export type HookScheme = (typeof HOOK_SCHEMES)[number]

/** An address that takes signed webhooks from outside and makes a trigger of each. */
export interface HookShape {
  name: string
  scheme: HookScheme
  /** The topic of its triggers. With the scheme `github` the name of the event follows: `github` makes `github.push`. */
  topic: string
  /** Its triggers are this user's. */
  user_id: string
  created_at: string
  updated_at: string
}

export interface HookRequest {
  scheme: HookScheme
  topic: string
  /** Left out: a new hook gets a new secret, and a hook that exists keeps the one it has. */
  secret?: string | undefined
}

/** The answer to a call that makes or changes a hook. */
export interface PutHookResponse extends HookShape {
  /** Shown once, when the server made it; null otherwise. */
  secret: string | null
}
