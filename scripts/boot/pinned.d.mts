export interface PinnedPackage {
  version: string
  integrity: string
  name?: string
  os?: string[]
  cpu?: string[]
  libc?: string[]
}
/** By path, as in a lock file: `node_modules/npm`. */
export type PinnedPackages = Record<string, PinnedPackage>
export function specsOf(...sets: string[]): string[]
export function packagesOf(...sets: string[]): PinnedPackages
export function installPinned(packages: PinnedPackages, folder: string): Promise<void>
