import { mkdirSync, mkdtempSync, readlinkSync, realpathSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { linkOwn } from './modules.mjs'

test('a package that moved in the repository is linked to its new folder', () => {
  const root = realpathSync(mkdtempSync(join(tmpdir(), 'ichido-links-')))
  for (const folder of ['old', 'moved', 'new', 'same', 'node_modules']) mkdirSync(join(root, folder))
  symlinkSync('../old', join(root, 'node_modules', 'moved'))
  symlinkSync('../same', join(root, 'node_modules', 'same'))
  const packages = {
    '': {},
    'node_modules/moved': { link: true, resolved: 'moved' },
    'node_modules/@own/new': { link: true, resolved: 'new' },
    'node_modules/same': { link: true, resolved: 'same' },
    'node_modules/foreign': { resolved: 'foreign.tgz' },
  }
  linkOwn({ packages }, root)
  const linked = (name: string) => realpathSync(join(root, 'node_modules', name))
  expect(linked('moved')).toBe(join(root, 'moved'))
  expect(linked('@own/new')).toBe(join(root, 'new'))
  expect(readlinkSync(join(root, 'node_modules', 'same'))).toBe('../same')
  expect(() => linked('foreign')).toThrow('ENOENT')
  rmSync(root, { recursive: true })
})
