import { execFileSync } from 'node:child_process'
import type { Command } from 'commander'
import { expect, test } from 'vitest'
import { createProgram } from './program.ts'

/** Every command that people can see, with its words. */
function commandsOf(command: Command, words: readonly string[] = []): { command: Command; words: readonly string[] }[] {
  return command.commands
    .filter((inner) => !('_hidden' in inner && inner._hidden === true))
    .flatMap((inner) => {
      const path = [...words, inner.name()]
      return [{ command: inner, words: path }, ...commandsOf(inner, path)]
    })
}

/** The help as people see it. */
function helpOf(command: Command): string {
  let text = ''
  command.configureOutput({ writeOut: (part) => (text += part) })
  command.outputHelp()
  return text
}

/** The words of a line, as a shell splits them. */
function split(line: string): string[] {
  return execFileSync('bash', ['-c', `printf '%s\\0' ${line}`], { encoding: 'utf8' })
    .split('\0')
    .slice(0, -1)
}

const all = commandsOf(createProgram())

test.each(all.map(({ command, words }) => [words.join(' '), command] as const))(
  'the help of %s has examples that the program can parse',
  (name, command) => {
    const [, below = ''] = helpOf(command).split('\nExamples:\n')
    const lines = below.trimEnd().split('\n')
    expect(lines.length).toBeGreaterThan(0)
    for (const line of lines) {
      const words = split(line)
      expect(words.slice(0, 1 + name.split(' ').length).join(' ')).toBe(`ichido ${name}`)
      expect(parsed(words.slice(1)), line).toMatch(new RegExp(`^${name}`))
    }
  },
)

/** The command that a line reaches, without running it. */
function parsed(words: readonly string[]): string {
  const program = createProgram()
  let reached = ''
  for (const { command, words: path } of commandsOf(program)) {
    // It would wait for standard input.
    for (const option of command.options) if (option.name() === 'secret') option.argParser(String)
    if (command.commands.length === 0)
      command.action(() => {
        reached = path.join(' ')
      })
  }
  program.configureOutput({ writeErr: () => {} })
  program.parse([...words], { from: 'user' })
  return reached
}

test('a wrong example is found', () => {
  expect(() => parsed(['jobs', 'list', '--colour'])).toThrow("unknown option '--colour'")
  expect(() => parsed(['jobs', 'show'])).toThrow('missing required argument')
})
