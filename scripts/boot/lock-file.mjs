import { Trouble } from './trouble.mjs'

/**
 * npm checks the hash of a package only if the lock file has one, and fetches from the host that the lock file names, if it names
 * one, whatever registry this machine uses.
 */
export function checkLockFile(lock) {
  for (const [path, { integrity, resolved, link }] of Object.entries(lock.packages)) {
    // The workspace's own packages.
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
