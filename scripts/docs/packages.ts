import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from '../boot/fetch-packages.mjs'

/** The entries of the packages: `@ichido/sdk/worker` → `sdk/src/worker/index.ts`. */
export function packageEntries(): Map<string, string> {
  const entries = ['sdk', 'library'].flatMap((folder) => {
    const { name, exports } = JSON.parse(readFileSync(join(root, folder, 'package.json'), 'utf8')) as {
      name: string
      exports: Record<string, { 'ichido-source'?: string }>
    }
    return Object.entries(exports).flatMap(([path, { 'ichido-source': source }]) =>
      source === undefined ? [] : [[join(name, path), join(folder, source)] as const],
    )
  })
  return new Map(entries)
}
