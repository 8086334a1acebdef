/** The parts of a node's work, so that it can be split over processes. By default a node does everything. */
export const NODE_ROLES = ['api', 'leader', 'router', 'gateway'] as const
export type NodeRole = (typeof NODE_ROLES)[number]

export const ALL_NODE_ROLES: ReadonlySet<NodeRole> = new Set(NODE_ROLES)

export function isNodeRole(name: string): name is NodeRole {
  return NODE_ROLES.some((role) => role === name)
}

const OLDEST = { major: 22, minor: 13 }
export const NODE_MIN = `${OLDEST.major}.${OLDEST.minor}`

/**
 * Says why this version of Node.js cannot run Ichido; null if it can. This file imports nothing, so that every version
 * can run it.
 */
export function nodeTooOld(version: string): string | null {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > OLDEST.major || (major === OLDEST.major && minor >= OLDEST.minor)) return null
  return `Ichido needs Node ${NODE_MIN} or newer; this is ${version}`
}
