import { createHash } from 'node:crypto'
import { createReadStream, openAsBlob } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { AwaitedArtifactShape } from '@ichido/sdk/protocol'
import type { Connection } from '../../connection/connect.ts'
import { bytesOf, bytesText } from '../../output/bytes.ts'
import { Failure } from '../../output/exit.ts'
import { mayPass, RETRY_MS, UNREACHABLE_MAX_MS } from '../../output/follow.ts'
import { LiveLine, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'

/** A file that a job is given. */
export interface GivenFile extends Required<AwaitedArtifactShape> {
  sha256: string
  size_bytes: number
  bytes: Blob
}

/** By their hashes: what the user has sent before is not sent again, and a key stands for this content only. */
export async function readFiles(paths: readonly string[]): Promise<GivenFile[]> {
  const files: GivenFile[] = []
  for (const path of paths) {
    const name = basename(path)
    if (files.some((file) => file.name === name)) {
      throw new Failure(`Two of the files are called ${name}.`, 'A job has one file of each name.', 2)
    }
    files.push(await readFile(path, name))
  }
  return files
}

async function readFile(path: string, name: string): Promise<GivenFile> {
  const bytes = await openAsBlob(path)
  const hash = createHash('sha256')
  let readBytes = 0
  const live = new LiveLine(() => `reading ${bytesOf(name, readBytes, bytes.size)}`)
  try {
    for await (const part of createReadStream(path)) {
      hash.update(part as Buffer)
      readBytes += (part as Buffer).length
    }
  } finally {
    live.end()
  }
  return { name, bytes, size_bytes: bytes.size, sha256: hash.digest('hex') }
}

export function listed({ name, sha256, size_bytes }: GivenFile): AwaitedArtifactShape {
  return { name, sha256, size_bytes }
}

/** Sends a job what it waits for, through restarts of the server; what is there already is not sent. */
export async function sendFiles(connection: Connection, jobId: string, files: readonly GivenFile[]): Promise<void> {
  for (const file of files) {
    try {
      await sendFile(connection, jobId, file)
    } catch (error) {
      say(
        `Job ${jobId} waits for ${file.name}. If you gave a --key, run the same command again to send the rest; or cancel the`,
      )
      say(`job with ${commandLine(`jobs cancel ${jobId}`)}`)
      throw error
    }
  }
}

async function sendFile({ transport }: Connection, jobId: string, file: GivenFile): Promise<void> {
  const { name, sha256, bytes } = file
  let sent = 0
  let most = 0
  let lastMs = performance.now()
  const onProgress = ({ sentBytes }: { sentBytes: number }) => {
    sent = sentBytes
    // Bytes that are sent again and again get nowhere.
    if (sent > most) lastMs = performance.now()
    most = Math.max(most, sent)
  }
  const live = new LiveLine(() => bytesOf(name, sent, bytes.size))
  try {
    for (;;) {
      try {
        await transport.upload(bytes, { name, jobId, sha256, onProgress })
        return live.say(`Sent ${name} (${bytesText(bytes.size)})`)
      } catch (error) {
        if (!mayPass(error) || performance.now() - lastMs > UNREACHABLE_MAX_MS) throw error
        await pause(RETRY_MS)
      }
    }
  } finally {
    live.end()
  }
}
