import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDiskFull } from '../../server/src/core/node/store-errors.ts'
import { Trouble } from '../boot/trouble.mjs'

export interface SmallDisk {
  /** The mount point. */
  folder: string
  /** Uses this many bytes until `free`. */
  fill(bytes: number): void
  /** Uses all remaining bytes. */
  fillUp(): void
  free(): void
  remove(): Promise<void>
}

/** A file system of this size, in memory. */
export async function smallDisk(bytes: number): Promise<SmallDisk> {
  const mountPoint = mkdtempSync(join(tmpdir(), 'ichido-disk-'))
  const { folder, unmount } = mountHere(mountPoint, bytes) ?? (await mountElsewhere(mountPoint, bytes))
  const ballast = join(folder, 'ballast')
  return {
    folder,
    fill: (size) => writeFileSync(ballast, Buffer.alloc(size, 1)),
    fillUp() {
      try {
        writeFileSync(ballast, Buffer.alloc(bytes, 1))
      } catch (error) {
        if (!isDiskFull(error)) throw error
      }
    },
    free: () => rmSync(ballast),
    async remove() {
      await unmount()
      rmdirSync(mountPoint)
    },
  }
}

interface Mounted {
  folder: string
  unmount(): Promise<void>
}

const tmpfs = (at: string, bytes: number) => ['-t', 'tmpfs', '-o', `size=${bytes},mode=0755`, 'tmpfs', at]

/** Returns null if mounting is not allowed. */
function mountHere(at: string, bytes: number): Mounted | null {
  try {
    execFileSync('mount', tmpfs(at, bytes), { stdio: 'ignore' })
  } catch {
    return null
  }
  // The unmount is lazy, because a killed process may not be gone yet.
  return { folder: at, unmount: async () => void execFileSync('umount', ['-l', at]) }
}

/** Mounts in the namespace of a child process, which need not be root. Other processes reach the disk through that process. */
async function mountElsewhere(at: string, bytes: number): Promise<Mounted> {
  const script = 'mount "$@" && echo mounted && read -r _'
  const holder: ChildProcess = spawn('unshare', ['-rm', 'sh', '-c', script, 'sh', ...tmpfs(at, bytes)], {
    stdio: ['pipe', 'pipe', 'ignore'],
  })
  const ended = once(holder, 'close').catch(() => {})
  const mounted = holder.stdout === null ? ended : once(holder.stdout, 'data')
  const said = await Promise.race([mounted, ended.then(() => null)])
  if (said === null || said === undefined) {
    throw new Trouble(
      'These tests need a small disk, and a tmpfs can be mounted neither here nor in a user namespace. ' +
        'Run them as root, in a container with `--cap-add SYS_ADMIN`, or allow user namespaces (sysctl user.max_user_namespaces).',
    )
  }
  return {
    folder: `/proc/${holder.pid}/root${at}`,
    async unmount() {
      holder.stdin?.end()
      await ended
    },
  }
}
