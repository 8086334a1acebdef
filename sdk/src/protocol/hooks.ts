/** How a sender signs its webhooks: Standard Webhooks, or GitHub's `X-Hub-Signature-256`. */
export const HOOK_SCHEMES = ['standard', 'github'] as const
export type HookScheme = (typeof HOOK_SCHEMES)[number]

/** A URL that turns signed webhooks into triggers. */
export interface HookShape {
  name: string
  scheme: HookScheme
  /** The topic of its triggers. With the scheme `github`, the name of the event is appended: `github` becomes `github.push`. */
  topic: string
  /** The owner of its triggers. */
  user_id: string
  created_at: string
  updated_at: string
}

export interface HookRequest {
  scheme: HookScheme
  topic: string
  /** Default: a new hook gets a new secret, and an existing hook keeps its secret. */
  secret?: string | undefined
}

/** The answer to a call that creates or changes a hook. */
export interface PutHookResponse extends HookShape {
  /** Shown only once, if the server made it; null otherwise. */
  secret: string | null
}
