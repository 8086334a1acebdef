import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { fetchPackages } from '../../scripts/boot/fetch-packages.mjs'

// pg-boss 12.38 asks for a package that is not in the registry.
const SPECS = ['pg-boss@12.35.0', 'graphile-worker@0.18.0', 'bullmq@6.7.0', 'ioredis@6.0.0']

/** The peers are no dependencies of ours: they are fetched when somebody measures. */
export function fetchPeers(): Promise<string> {
  return fetchPackages({ what: 'Fetching pg-boss, graphile-worker and BullMQ to measure against', specs: SPECS })
}

export function importPeer(packages: string, file: string): Promise<unknown> {
  return import(pathToFileURL(join(packages, 'node_modules', file)).href)
}

export const peerVersions = (): string => SPECS.map((spec) => spec.replace('@', ' ')).join(', ')
