import { execFile, execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import { nodeArgs } from '../../../../../scripts/testing/services.ts'
import { LEASE } from '../../testing/plane.ts'
import { outcomeOf } from '../process/exec.ts'
import { type RunFolder, RunFolders } from '../process/run-folder.ts'
import { httpArtifacts } from './artifacts.ts'
import { FileRefused, readRegular, writeDurably, writeWhole } from './files.ts'
import { Tail } from './output.ts'

const PROGRAM = join(import.meta.dirname, '../../testing/full-disk.ts')

test('a partial write on a full disk fails, and the old file stays', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-full-disk-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const script = 'ulimit -f 16; exec "$0" "$@"'
  const args = ['-c', script, process.execPath, ...nodeArgs, PROGRAM, folder]
  const { stdout } = await promisify(execFile)('/bin/sh', args)
  const { outcomes, ...rest } = JSON.parse(stdout)
  expect(outcomes[0]).toMatch(/^Error: EFBIG/)
  expect(outcomes[1]).toMatch(/^OutboxUnavailable: .*outbox.jsonl cannot be read or written: EFBIG/)
  expect(rest).toEqual({ file: 'before', kept: ['small', 'after'], warnings: [] })
})

const RUNNING = new AbortController().signal
const SECRET = '{"worker_token":"precious"}'

let root: string
/** The agent's token, which the program must not read. */
let secret: string
let folder: RunFolder
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ichido-written-'))
  secret = join(root, 'identity.json')
  writeFileSync(secret, SECRET)
  folder = new RunFolders(join(root, 'runs'), true).make(LEASE)
})
afterEach(() => {
  vi.unstubAllGlobals()
  rmSync(root, { recursive: true })
})

const PLACES: [string, (path: string) => void, string][] = [
  ['a link', (path) => symlinkSync(secret, path), 'is a symbolic link'],
  ['a link to nowhere', (path) => symlinkSync(join(root, 'nowhere'), path), 'is a symbolic link'],
  ['a pipe that nobody writes to', (path) => void execFileSync('mkfifo', [path]), 'is not a regular file'],
  ['a folder', (path) => mkdirSync(path), 'is not a regular file'],
]

const succeeded = () => outcomeOf({ by: 'itself', code: 0, signal: null }, RUNNING, folder)

for (const name of ['resultFile', 'costFile', 'stdoutFile', 'stderrFile', 'progressFile'] as const) {
  test.each(PLACES)(`${name} as %s fails the run for good, by its name`, (_, put, why) => {
    rmSync(folder[name], { force: true })
    put(folder[name])
    const file = folder[name].slice(dirname(folder[name]).length + 1)
    expect(succeeded()).toEqual({ failure: { code: 'FILE_REFUSED', message: `${file} ${why}`, retryable: false } })
  })
}

test.each([
  ['resultFile', 600 * 1024 * 1024, 'result.json has 629145600 bytes; at most 16777216 are read'],
  ['costFile', 1_001, 'cost has 1001 bytes; at most 1000 are read'],
] as const)('%s of %i bytes is not read', (name, bytes, message) => {
  writeFileSync(folder[name], '1')
  truncateSync(folder[name], bytes)
  const before = process.memoryUsage.rss()
  expect(succeeded()).toEqual({ failure: { code: 'FILE_REFUSED', message, retryable: false } })
  expect(process.memoryUsage.rss() - before).toBeLessThan(100 * 1024 * 1024)
})

test('a failed program keeps its own error, even if it replaced its files', () => {
  writeFileSync(folder.stderrFile, 'no luck\n')
  execFileSync('mkfifo', [folder.resultFile])
  const failed = () => outcomeOf({ by: 'itself', code: 3, signal: null }, RUNNING, folder)
  expect(failed()).toMatchObject({ failure: { code: 'EXIT_3', message: 'The program exited with code 3: no luck' } })
  rmSync(folder.stderrFile)
  symlinkSync(secret, folder.stderrFile)
  expect(JSON.stringify(failed())).not.toContain('precious')
})

test('a link in the path is noticed', () => {
  mkdirSync(join(root, 'elsewhere'))
  writeFileSync(join(root, 'elsewhere', 'result.json'), SECRET)
  const run = dirname(folder.resultFile)
  renameSync(run, join(root, 'aside'))
  symlinkSync(join(root, 'elsewhere'), run)
  expect(() => readRegular(folder.resultFile, 1_000)).toThrow(
    new FileRefused('result.json is reached through a symbolic link'),
  )
})

test('a log that became a link is neither read nor truncated', () => {
  const tail = new Tail(folder.stdoutFile)
  rmSync(folder.stdoutFile)
  symlinkSync(secret, folder.stdoutFile)
  expect(tail.read(100)).toBe('')
  tail.discard()
  expect(readFileSync(secret, 'utf8')).toBe(SECRET)
})

test.each([
  ['writeWhole', writeWhole],
  ['writeDurably', writeDurably],
])('%s writes through no link', (_, write) => {
  symlinkSync(secret, `${folder.noteFile}.new`)
  write(folder.noteFile, 'noted')
  expect(readFileSync(folder.noteFile, 'utf8')).toBe('noted')
  expect(readFileSync(secret, 'utf8')).toBe(SECRET)
})

test('replaced notes of the agent do not prevent its start', () => {
  const run = dirname(folder.resultFile)
  rmSync(join(run, 'lease.json'))
  execFileSync('mkfifo', [join(run, 'lease.json')])
  symlinkSync(secret, join(run, 'report.json'))
  expect(new RunFolders(join(root, 'runs'), true).leftovers()).toEqual({ kept: [], abandoned: [] })
  expect(existsSync(run)).toBe(false)
  expect(readFileSync(secret, 'utf8')).toBe(SECRET)
})

/** Why the files in the folder were refused, and what was sent. */
async function refused(): Promise<{ why: unknown; sent: string[] }> {
  const sent: string[] = []
  vi.stubGlobal('fetch', async (_: string, { body }: { body: ReadableStream }) => {
    sent.push(await new Response(body).text())
    return new Response(null, { status: 201 })
  })
  const artifacts = httpArtifacts({ url: 'https://plane', token: () => 'token', world: new FakeWorld() })
  const why = await artifacts.sendAll(LEASE, folder.outputs, RUNNING).then(
    () => null,
    (error: unknown) => error,
  )
  return { why, sent }
}

test('files in outputs/ are sent, and folders are not', async () => {
  writeFileSync(join(folder.outputs, 'a.txt'), 'one')
  writeFileSync(join(folder.outputs, 'empty'), '')
  mkdirSync(join(folder.outputs, 'inner'))
  expect(await refused()).toEqual({ why: null, sent: ['one', ''] })
})

test.each(PLACES.filter(([what]) => what !== 'a folder'))(
  '%s in outputs/ is refused by name, and the other files are sent',
  async (_, put, why) => {
    writeFileSync(join(folder.outputs, 'zz.txt'), 'one')
    put(join(folder.outputs, 'a.dat'))
    expect(await refused()).toEqual({ why: new FileRefused(`outputs/a.dat ${why}`), sent: ['one'] })
  },
)

test('a socket in outputs/ is refused', async () => {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(join(folder.outputs, 'socket'), resolve))
  const { why, sent } = await refused()
  await new Promise((resolve) => server.close(resolve))
  expect(why).toEqual(new FileRefused('outputs/socket is not a regular file'))
  expect(sent).toEqual([])
})

test.each([
  ['outputs', () => folder.outputs],
  ['work', () => folder.work],
])('%s as a link to another folder is refused', async (name, place) => {
  mkdirSync(join(root, 'elsewhere', 'outputs'), { recursive: true })
  writeFileSync(join(root, 'elsewhere', 'outputs', 'passwd'), 'precious')
  rmSync(place(), { recursive: true })
  symlinkSync(name === 'work' ? join(root, 'elsewhere') : join(root, 'elsewhere', 'outputs'), place())
  const { why, sent } = await refused()
  expect(why).toBeInstanceOf(FileRefused)
  expect(String(why)).toContain('outputs')
  expect(sent).toEqual([])
})
