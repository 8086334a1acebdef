/** What a node does, so that it can be split over processes. Unless it is told otherwise, a node does everything. */
export const NODE_ROLES = ['api', 'leader', 'router', 'gateway'] as const
export type NodeRole = (typeof NODE_ROLES)[number]

export const ALL_NODE_ROLES: ReadonlySet<NodeRole> = new Set(NODE_ROLES)

export function isNodeRole(name: string): name is NodeRole {
  return NODE_ROLES.some((role) => role === name)
}
