import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { BadOptions } from '../errors.ts'
import { addedEnv, INHERITED, inherited } from './inherited.ts'

test.each([
  'ICHIDO_TOKEN',
  'DATABASE_URL',
  'REDIS_URL',
  'AWS_SECRET_ACCESS_KEY',
  'NODE_AUTH_TOKEN',
  'SLURM_JWT',
  'PATHS',
])('%s is not inherited', (name) => expect(inherited({ [name]: 'x', HOME: '/home' })).toEqual({ HOME: '/home' }))

test('--env adds a variable of this environment, or a new one', () => {
  const env = { TOKEN: 'secret', EMPTY: '' }
  expect(addedEnv(['TOKEN', 'EMPTY', 'A=b=c', 'LINES=1\n2', 'NONE='], env)).toEqual({
    TOKEN: 'secret',
    EMPTY: '',
    A: 'b=c',
    LINES: '1\n2',
    NONE: '',
  })
})

test.each([
  ['MISSING', '--env MISSING: there is no such variable here; use MISSING=VALUE'],
  ['1=2', '--env must be NAME or NAME=VALUE, not "1=2"'],
  ['', '--env must be NAME or NAME=VALUE, not ""'],
])('--env %s is refused', (given, message) => {
  expect(() => addedEnv([given], {})).toThrow(new BadOptions(message))
})

test('the docs list all inherited variables', () => {
  const docs = readFileSync(join(import.meta.dirname, '../../../../../docs/workers.md'), 'utf8')
  expect(INHERITED.filter((name) => !docs.includes(`\`${name}\``))).toEqual([])
})
