import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { fetchPackages } from '../../scripts/boot/fetch-packages.mjs'
import { specsOf } from '../../scripts/boot/pinned.mjs'

// pg-boss 12.38 needs a package that is not in the registry.
const SET = 'bench'

/** The peers are not our dependencies. They are fetched for a benchmark only. */
export function fetchPeers(): Promise<string> {
  return fetchPackages({
    what: 'Fetching pg-boss, graphile-worker, BullMQ and bee-queue to measure against',
    sets: [SET],
  })
}

export function importPeer(packages: string, file: string): Promise<unknown> {
  return import(pathToFileURL(join(packages, 'node_modules', file)).href)
}

export const peerVersions = (): string =>
  specsOf(SET)
    .map((spec) => spec.replace('@', ' '))
    .join(', ')
