import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'
import { nodeArgs } from '../../../../../scripts/testing/services.ts'

const PROGRAM = join(import.meta.dirname, '../../testing/full-disk.ts')

test('what a full disk takes only a part of is refused, and what was there before stays', async () => {
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
