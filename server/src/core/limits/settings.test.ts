import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { SETTING_NAMES, SETTINGS, settingProblem, settingVariable } from './settings.ts'

const PAGE = readFileSync(join(import.meta.dirname, '../../../../docs/operations/configure.md'), 'utf8')

test('docs/operations/configure.md lists exactly all settings, with bounds', () => {
  const rows = SETTING_NAMES.map((name) => {
    const { default: preset, min, max, says } = SETTINGS[name]
    return `| \`${name}\` | ${preset} | ${min} – ${max} | ${says} |`
  })
  const section = PAGE.split('\n## ').find((part) => part.startsWith('Settings\n')) ?? ''
  expect(section.split('\n').filter((line) => /^\| `\w+` \|/.test(line))).toEqual(rows)
})

test.each(SETTING_NAMES)('%s: its default and its bounds are allowed, and nothing beyond', (name) => {
  const { default: preset, min, max, whole } = SETTINGS[name]
  for (const value of [preset, min, max]) expect(settingProblem(name, value)).toBeNull()
  const wrong = [
    min - 0.01,
    max + 0.01,
    Number.NaN,
    Number.POSITIVE_INFINITY,
    String(preset),
    null,
    ...(whole ? [1.5] : []),
  ]
  for (const value of wrong) {
    expect(settingProblem(name, value)).toBe(`must be a ${whole ? 'whole ' : ''}number from ${min} to ${max}`)
  }
})

test('no variable of a setting is also a variable of the server', () => {
  const serve = readFileSync(join(import.meta.dirname, '../../node/config.ts'), 'utf8')
  for (const name of SETTING_NAMES) expect(serve).not.toContain(`  ${settingVariable(name)}:`)
})
