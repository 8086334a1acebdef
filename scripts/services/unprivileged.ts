import { readFileSync } from 'node:fs'
import { Trouble } from '../boot/trouble.mjs'
import type { Owner } from './server-process.ts'

/** The user that runs what refuses to run as root; undefined when this process is not root. */
export function unprivilegedUser(): { name: string; owner: Owner } | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8').split('\n')
  const fields = ['postgres:', 'nobody:'].map((name) => users.find((line) => line.startsWith(name))).find(Boolean)
  const [name, , uid, gid] = fields?.split(':') ?? []
  if (!name || !uid || !gid) {
    throw new Trouble('PostgreSQL and PgBouncer cannot run as root, and there is no user `postgres` or `nobody`.')
  }
  return { name, owner: { uid: Number(uid), gid: Number(gid) } }
}
