import { randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

const TOUCH_MS = 1000
const STALE_MS = 15_000
const LOOK_MS = 200

/**
 * Runs `work` while no other process holds this file. The holder touches the file every second. A file that was not
 * touched for a while belonged to a process that was killed.
 */
export async function withLock(path, onWait, work) {
  mkdirSync(dirname(path), { recursive: true })
  const mine = randomBytes(8).toString('hex')
  for (let waited = false; !take(path, mine); waited = true) {
    if (!waited) onWait()
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
  }
  const release = () => {
    if (holder(path) === mine) rmSync(path, { force: true })
  }
  process.once('exit', release)
  const timer = setInterval(() => {
    const now = new Date()
    if (holder(path) === mine) utimesSync(path, now, now)
  }, TOUCH_MS)
  try {
    return await work()
  } finally {
    clearInterval(timer)
    process.removeListener('exit', release)
    release()
  }
}

function take(path, mine) {
  try {
    writeFileSync(path, mine, { flag: 'wx' })
    return true
  } catch (error) {
    if (error.code !== 'EEXIST') throw error
  }
  try {
    if (Date.now() - statSync(path).mtimeMs > STALE_MS) rmSync(path, { force: true })
  } catch {
    // The lock was released between the two checks, and the next round takes it.
  }
  return false
}

function holder(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
