import { execFileSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { ichido } from '../testing/cli.ts'

/** The words that bash offers for the last one of these. */
async function offered(...words: string[]): Promise<string[]> {
  const { code, stdout } = await ichido(['completion', 'bash'])
  expect(code).toBe(0)
  const typed = `COMP_WORDS=("$@"); COMP_CWORD=${words.length - 1}; _ichido; printf '%s\\n' "\${COMPREPLY[@]}"`
  const script = `${stdout}\n${typed}`
  return execFileSync('bash', ['--norc', '-uc', script, 'bash', ...words], { encoding: 'utf8' })
    .trim()
    .split('\n')
}

test('bash completes commands, subcommands, flags and choices', async () => {
  expect(await offered('ichido', 'que')).toEqual(['queues'])
  expect(await offered('ichido', 'jobs', 'l')).toEqual(['list', 'logs'])
  expect(await offered('ichido', 'jobs', 'list', '--wat')).toEqual(['--watch'])
  expect(await offered('ichido', 'jobs', 'list', '--queue', 'q', '--ki')).toEqual(['--kind'])
  expect(await offered('ichido', 'completion', 'b')).toEqual(['bash'])
})

test('bash offers no hidden command, and nothing for an unknown word', async () => {
  expect(await offered('ichido', 'sched')).toEqual([''])
  expect(await offered('ichido', '')).toEqual(expect.arrayContaining(['serve', 'settings', '--version', '--help']))
})
