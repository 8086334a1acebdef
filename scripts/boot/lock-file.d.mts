export interface LockFile {
  packages: Record<string, LockedPackage>
}
export interface LockedPackage {
  name?: string
  version?: string
  integrity?: string
  resolved?: string
  license?: string
  link?: boolean
  dev?: boolean
  optional?: boolean
  dependencies?: Record<string, string>
  optionalDependencies?: Record<string, string>
}
export function checkLockFile(lock: LockFile): void
