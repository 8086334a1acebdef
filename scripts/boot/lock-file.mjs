import { Trouble } from './trouble.mjs'

/**
 * npm checks the hash of a package only if the lock file has one. If the lock file names a host, npm fetches from that
 * host instead of the registry of this machine.
 */
export function checkLockFile(lock) {
  for (const [path, { integrity, resolved, link }] of Object.entries(lock.packages)) {
    // Workspace packages have no tarball.
    if (link || !path.includes('node_modules/')) continue
    if (!/^sha512-[A-Za-z0-9+/]{86}==$/.test(integrity ?? '')) throw unfit(`has no SHA-512 for ${path}`)
    if (resolved !== undefined) throw unfit(`says where ${path} is fetched from`)
  }
}

const unfit = (problem) =>
  new Trouble(
    `package-lock.json ${problem}, so nothing is installed. Restore the file, or write it anew: ` +
      '`npm install --package-lock-only --omit-lockfile-registry-resolved`.',
  )
