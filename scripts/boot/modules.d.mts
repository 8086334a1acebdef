export function ensureModules(nodeMajor: number): Promise<void>
export function linkOwn(lock: { packages: Record<string, { link?: boolean; resolved?: string }> }, root: string): void
