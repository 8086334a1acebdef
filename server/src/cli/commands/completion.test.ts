import { execFileSync, spawnSync } from 'node:child_process'
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
  expect(await offered('ichido', 'completion', 'z')).toEqual(['zsh'])
})

test('bash offers no hidden command, and nothing for an unknown word', async () => {
  expect(await offered('ichido', 'sched')).toEqual([''])
  expect(await offered('ichido', '')).toEqual(expect.arrayContaining(['serve', 'settings', '--version', '--help']))
})

const has = (shell: string) => spawnSync(shell, ['--version']).status === 0

/** A line for `zsh -c` and `fish -c` that prints the words offered for the last one of these. */
const OFFER = {
  zsh: (words: readonly string[], script: string) =>
    `compdef() { :; }; compadd() { shift; print -rl -- "$@"; }\n${script}\nwords=(${words.map((word) => `'${word}'`).join(' ')}); CURRENT=${words.length}; _ichido`,
  fish: (words: readonly string[], script: string) => `${script}\ncomplete -C '${words.join(' ')}'`,
}

test.each(['zsh', 'fish'] as const)('%s completes subcommands and flags, if it is installed', async (shell) => {
  if (!has(shell)) return
  const { stdout: script } = await ichido(['completion', shell])
  const offers = (...words: string[]) =>
    execFileSync(shell, ['-c', OFFER[shell](words, script)], { encoding: 'utf8' })
      .trim()
      .split('\n')
  expect(offers('ichido', '')).toEqual(expect.arrayContaining(['queues', 'settings']))
  expect(offers('ichido', 'jobs', 'l')).toEqual(expect.arrayContaining(['list', 'logs']))
  expect(offers('ichido', 'jobs', 'list', '--wat')).toContain('--watch')
  expect(offers('ichido', 'jobs', 'list', '--queue', 'q', '--ki')).toContain('--kind')
})

/** In a script, every command is followed by the words that can follow it. */
const PLACES = {
  bash: /^ {4}'([^']*)'\) words='([^']*)' ;;$/gm,
  zsh: /^ {4}'([^']*)'\) line='([^']*)' ;;$/gm,
  fish: /^ {4}case '([^']*)'\n {6}string split ' ' -- '([^']*)'$/gm,
}

test.each(['zsh', 'fish'] as const)('the script of %s has the words of bash, and loads in its shell', async (shell) => {
  const [bash, other] = [await ichido(['completion', 'bash']), await ichido(['completion', shell])]
  const placesOf = (text: string, pattern: RegExp) =>
    [...text.matchAll(pattern)].map(([, path, words]) => [path, words])
  const places = placesOf(other.stdout, PLACES[shell])
  expect(places.length).toBeGreaterThan(50)
  expect(places).toEqual(placesOf(bash.stdout, PLACES.bash))
  if (!has(shell)) return
  const script = shell === 'zsh' ? `compdef() { :; }\n${other.stdout}` : other.stdout
  expect(spawnSync(shell, ['-c', script], { encoding: 'utf8' })).toMatchObject({ status: 0, stderr: '' })
})
