import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { FileStore } from '../../outbox/node/file-store.ts'
import { platformWorld } from '../../world.ts'
import { writeDurably } from '../agent/output/files.ts'

/** Run where no file can grow beyond a few kB: writes what fits, and then what does not. */
const [folder = ''] = process.argv.slice(2)
const LARGE = 'x'.repeat(100_000)

async function outcomeOf(work: () => unknown): Promise<string> {
  try {
    await work()
    return 'done'
  } catch (error) {
    return String(error)
  }
}

const file = join(folder, 'identity.json')
const path = join(folder, 'outbox.jsonl')
const warnings: string[] = []
const store = new FileStore({ path, world: platformWorld, warn: (message) => warnings.push(message) })
const put = (id: string, body: string) =>
  store.add({ id, key: id, body, savedAtMs: 1, attempts: 0, status: 'queued', dueAtMs: 0 })

writeDurably(file, 'before')
await put('small', 'x')
const outcomes = [await outcomeOf(() => writeDurably(file, LARGE)), await outcomeOf(() => put('large', LARGE))]
await put('after', 'x')
const kept = (await store.list()).map(({ id }) => id)
process.stdout.write(JSON.stringify({ outcomes, file: readFileSync(file, 'utf8'), kept, warnings }))
