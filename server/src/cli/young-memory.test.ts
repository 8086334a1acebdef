import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const MODULE = new URL('young-memory.ts', import.meta.url).href

/** Prints the size of the young memory after many objects survived: while it is held, and after its release. */
const SCRIPT = `
import { getHeapSpaceStatistics } from 'node:v8'
import { youngMemory } from ${JSON.stringify(MODULE)}
const size = () => getHeapSpaceStatistics().find((space) => space.space_name === 'new_space').space_size
const kept = []
const fill = () => { for (let n = 0; n < 1_000_000; n++) kept.push({ n }) }
youngMemory.hold()
fill()
const held = size()
youngMemory.release()
fill()
console.log(JSON.stringify({ held, released: size() }))
`

test('young memory grows only after its release, and Node knows the flag', async () => {
  const args = ['--input-type=module', '--eval', SCRIPT]
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args)
  // V8 writes a line for a flag that it does not know, and goes on.
  expect(stderr).toBe('')
  const { held, released } = JSON.parse(stdout) as { held: number; released: number }
  // Without the flag it is 32 MB and more.
  expect(held).toBeLessThan(8 * 2 ** 20)
  expect(released).toBeGreaterThan(2 * held)
})
